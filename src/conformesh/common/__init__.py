"""Helpers that every package may use: names, arrays from users, random streams, quantities in words, notes, progress.

Nothing here knows conformal prediction or networks, and nothing here imports another package of this library.
"""
