"""The skeletons of docs/skeletons, each added by its one line; as a program, the command line that then follows.

python -m tests.with_skeletons calibrate scores.csv --engine loops
"""

import importlib.util
import sys
from pathlib import Path

from conformesh.engines import ENGINES
from conformesh.graph.topologies import TOPOLOGIES
from conformesh.methods import METHODS
from conformesh.scores import SCORES

FOLDER = Path(__file__).parents[1] / "docs" / "skeletons"
TABLES = {"engine": ENGINES, "method": METHODS, "score": SCORES, "topology": TOPOLOGIES}


def skeleton(kind):
    """Import a skeleton as it stands on the page."""
    spec = importlib.util.spec_from_file_location(f"skeleton_{kind}", FOLDER / f"{kind}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def add_all():
    """Add the one line of every skeleton to its table."""
    for kind, table in TABLES.items():
        table.update(skeleton(kind).LINE)


if __name__ == "__main__":
    add_all()
    from conformesh.cli import app

    app(sys.argv[1:])
