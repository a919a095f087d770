"""The skeletons of docs/skeletons, each added by its one line; as a program, the command line that then follows.

python -m tests.with_skeletons calibrate scores.csv --engine loops
python -m tests.with_skeletons '[["methods"], ["engines", "--json"]]'       several, and their output as JSON
"""

import importlib.util
import io
import json
import sys
from contextlib import redirect_stdout, suppress
from pathlib import Path

from conformesh.engines import ENGINES
from conformesh.graph.topologies import TOPOLOGIES
from conformesh.methods import METHODS
from conformesh.protocols.aggregate import AGGREGATORS
from conformesh.scores import SCORES
from conformesh.scores.adapt import ADAPTATIONS

FOLDER = Path(__file__).parents[1] / "docs" / "skeletons"
TABLES = {
    "adaptation": ADAPTATIONS,
    "aggregator": AGGREGATORS,
    "engine": ENGINES,
    "method": METHODS,
    "score": SCORES,
    "topology": TOPOLOGIES,
}


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


def printed(words):
    """Return what one command prints."""
    from conformesh.cli import app  # not before: its help texts are made from the tables

    out = io.StringIO()
    with redirect_stdout(out), suppress(SystemExit):
        app(words)
    return out.getvalue()


if __name__ == "__main__":
    add_all()
    if sys.argv[1].startswith("["):
        print(json.dumps([printed(words) for words in json.loads(sys.argv[1])]))
    else:
        from conformesh.cli import app

        app(sys.argv[1:])
