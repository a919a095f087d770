"""One algorithm per file, generators only."""
