"""Small model outputs on disk, which every process can read."""

import numpy as np
import pytest

from conformesh.lab.datasets.synthetic import synthetic_outputs
from conformesh.lab.reproduction.paper_scores import paper_score_sources


@pytest.fixture(scope="session")
def small_files(tmp_path_factory):
    """Outputs for 100 and for 9 classes, 2000 and 800 rows: 10 calibrate on each of 20 or of 8 devices.

    Nothing in them says that no real model was involved.
    """
    folder = tmp_path_factory.mktemp("outputs")
    for name, rows, classes in (("hundred", 2000, 100), ("nine", 800, 9)):
        outputs = synthetic_outputs(rows, classes)
        np.savez(folder / f"{name}.npz", logits=outputs.values, labels=outputs.labels)
    return folder


@pytest.fixture(scope="session")
def small_sources(small_files):
    return paper_score_sources([str(small_files)])


@pytest.fixture(scope="session")
def cifar(small_sources):
    return small_sources["cifar100"]
