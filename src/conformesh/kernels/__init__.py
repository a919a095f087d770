"""Numerical loops, and the integers behind every guarantee (`ranks`).

A loop that NumPy runs well exists once. Where Numba is measurably quicker, either the same source is compiled
(`replies`, `pinball`) or the function has a twin in `compiled`; `compilation` decides for each call which one runs.
Nothing here knows methods, files or messages. Imports `common` only, and Numba in `compiled` only.
"""
