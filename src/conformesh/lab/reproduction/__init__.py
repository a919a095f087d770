"""EXPERIMENTS: the figures and tables of [Wen2025] as cells of the sweep machinery, with what the paper says of them.

`entries` is the table; the other modules turn its cells into rows, curves, pictures, verdicts and a report.
"""

from __future__ import annotations

from conformesh.common.names import unknown
from conformesh.lab.reproduction.entries import EXPERIMENTS
from conformesh.lab.reproduction.experiment import Experiment

__all__ = ["EXPERIMENTS", "get_experiment"]


def get_experiment(name: str) -> Experiment:
    """Return an experiment by its name, or by its item in the paper, as "figure-2" or "table-1"."""
    word = name.lower().replace(" ", "-")
    if word in EXPERIMENTS:
        return EXPERIMENTS[word]
    items = {entry.item.lower().replace(" ", "-"): entry for entry in EXPERIMENTS.values()}
    if word not in items:
        raise ValueError(unknown("experiment", name, [*EXPERIMENTS, *items]))
    return items[word]
