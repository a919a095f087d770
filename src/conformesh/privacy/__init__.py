"""Privacy: noise in shares, what it costs in coverage, and who learns what."""
