"""Figures with matplotlib and HTML for notebooks. Loaded when a result is drawn or shown, never before."""
