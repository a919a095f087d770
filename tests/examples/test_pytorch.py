"""The PyTorch example: tensors in, certified sets out."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the PyTorch example needs PyTorch: pip install 'conformesh[torch]'")
pytestmark = pytest.mark.slow
FILE = Path(__file__).parents[2] / "examples" / "pytorch" / "run.py"


@pytest.fixture(scope="module")
def run():
    """The example, as a module that leaves no name behind."""
    found = importlib.util.spec_from_file_location("pytorch_example", FILE)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_tensors_give_what_arrays_give(run, capsys):
    held, result = run.main()
    assert all(isinstance(own, torch.Tensor) for own in held)
    arrays = [own.numpy() for own in held]
    again = run.calibrate(arrays, run.Network.torus(5, 2), alpha=run.ALPHA, score=run.SCORE)
    assert again.thresholds.tolist() == result.thresholds.tolist()
    assert result.certificate.kind == "counted"
    assert result.threshold == np.sort(np.concatenate(arrays))[result.certificate.required_rank - 1]
    said = capsys.readouterr().out
    assert "counted: the rank was counted exactly" in said
    covered = float(said.partition("coverage ")[2].split()[0])
    assert covered > 0.88, "of 847 rows, with a threshold at rank 761 of 800: lower has chance 1e-7"
