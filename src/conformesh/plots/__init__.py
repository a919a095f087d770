"""Figures with Matplotlib, and HTML for notebooks.

`figures` saves and shows, `pictures` has the style and the maps of networks, `results`, `local` and `online` draw one
kind of result each, `html` makes the cards of notebooks. Loaded when a result is drawn or shown, never before. Not
here: the browser page (`view`), figures of experiments (`lab`). Imports `online`, `results` and what is below them.
"""
