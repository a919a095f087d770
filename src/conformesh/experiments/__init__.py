"""EXPERIMENTS: the figures and tables of [Wen2025], one file each; `core` holds what they share.

To add one, write a file with an `EXPERIMENT` and add a line here: the command line, the runner, the pictures and the
report take it from the table.
"""

from __future__ import annotations

from importlib import import_module

from conformesh.experiments.core.experiment import Experiment
from conformesh.names import unknown

EXPERIMENTS: dict[str, str] = {  # name -> the module here that holds it; in the paper's order
    "q-dcp-alpha": "q_dcp_alpha",
    "q-dcp-alpha-bad": "q_dcp_alpha_bad",
    "h-dcp-alpha": "h_dcp_alpha",
    "communication": "communication",
    "star-table": "star_table",
    "q-dcp-convergence": "q_dcp_convergence",
    "h-dcp-convergence": "h_dcp_convergence",
    "q-dcp-large": "q_dcp_large",
    "h-dcp-large": "h_dcp_large",
    "erdos-renyi-wide": "erdos_renyi_wide",
    "erdos-renyi-narrow": "erdos_renyi_narrow",
    "ablation-kappa": "ablation_kappa",
    "ablation-mu": "ablation_mu",
    "ablation-mu-bad": "ablation_mu_bad",
    "ablation-bins": "ablation_bins",
    "pathmnist-q-dcp": "pathmnist_q_dcp",
    "pathmnist-h-dcp": "pathmnist_h_dcp",
}


def get_experiment(name: str) -> Experiment:
    """Return an experiment by its name, or by its item in the paper, as "figure-2" or "table-1"."""
    word = name.lower().replace(" ", "-")
    if word not in EXPERIMENTS:
        items = {_load(key).item.lower().replace(" ", "-"): key for key in EXPERIMENTS}
        if word not in items:
            raise ValueError(unknown("experiment", name, [*EXPERIMENTS, *items]))
        word = items[word]
    return _load(word)


def _load(name: str) -> Experiment:
    experiment: Experiment = import_module(f"conformesh.experiments.{EXPERIMENTS[name]}").EXPERIMENT
    return experiment
