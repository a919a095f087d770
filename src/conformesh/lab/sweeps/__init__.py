"""Sweeps: many networks, methods, alphas and draws in one call; finished cells survive an interruption.

`config` and `schema` read the request, `sweep` lays out its cells and collects their rows, `cells` computes and stores
one cell, `sources` provides its networks and scores, `parallel` distributes cells over processes, and `provenance`
identifies the code and the machine. `lab.reproduction` uses cells too, with its own scores and methods.
"""
