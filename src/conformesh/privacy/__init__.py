"""Privacy: who learns what from a run, and what can be done about it."""
