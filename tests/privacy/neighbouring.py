"""Neighbouring and very different data for a private run, on every engine."""

import numpy as np

OPTIONS = {"epsilon": 1.0, "cells": 16, "grid": "linear", "range": (0.0, 1.0)}
NEIGHBOURING = {
    "one more": lambda scores: [[*scores[0], 0.5], *scores[1:]],
    "all empty": lambda scores: [[] for _ in scores],
    "other values": lambda scores: [np.asarray(own) / 3 for own in scores],
    "many": lambda scores: [*scores[:-1], np.random.default_rng(2).random(100_000)],
}


def drawn_scores(network):
    """Return unequal scores; some devices may have none."""
    rng = np.random.default_rng(3)
    return [rng.random(rng.integers(0, 30)) for _ in range(network.devices)]
