"""Helpers that every package may use: names, arrays, random streams, quantities in words, notes, progress.

`names` orders device names and suggests the closest one, `arrays` checks arrays from users, `quantities` formats
counts, bits, bytes and times, `notes` warns with the user's line, `progress` draws bars. Nothing here knows conformal
prediction or networks, and nothing here imports another package of this library.
"""
