"""An installed wheel does its job, with nothing but what it asks for: `make smoke` runs this, without pytest."""

import csv
import importlib.metadata
import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import conformesh
from conformesh import METHODS, Network, calibrate, scores


def main():
    """Calibrate by every method, on every kind of promise that has a rank of its own, and from the command line."""
    home = Path(conformesh.__file__).parents[1]
    if Path(__file__).parents[1] / "src" == home:
        raise SystemExit(f"smoke needs the installed wheel, got the source tree {home}; run it by `make smoke`")
    rng = np.random.default_rng(0)
    likely = rng.dirichlet(np.full(5, 0.3), size=600)
    labels = np.array([rng.choice(5, p=row) for row in likely])
    lac = scores.LAC()
    held = np.split(lac(likely[:400], labels[:400]), 20)
    network = Network.torus(5, 4)
    for method in METHODS:
        calibrate(held, network, alpha=0.1, method=method)
    result = calibrate(held, network, alpha=0.1, score=lac)
    assert result.threshold == np.sort(np.concatenate(held))[result.certificate.required_rank - 1]
    found = result.evaluate(likely[400:], labels[400:])
    assert found.coverage.rate > 0.8, found
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scores.csv"
        with path.open("w", newline="") as file:
            rows = ((k, repr(float(s))) for k, own in enumerate(held) for s in own)
            csv.writer(file).writerows([("device", "score"), *rows])
        report = path.with_name("run.html")
        command = [sys.executable, "-m", "conformesh", "calibrate", str(path), "--network", "chain", "--json"]
        command += ["--report", str(report)]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        assert "uPlot" in report.read_text(), "the page is not in the wheel"
    assert json.loads(said)["threshold"] == result.threshold, said
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("numpy", "scipy", "numba", "scikit-learn")]
    print(f"conformesh {conformesh.__version__}, Python {platform.python_version()}, {', '.join(versions)}: {found}")


if __name__ == "__main__":
    main()
