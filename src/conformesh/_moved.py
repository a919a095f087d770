"""Where the modules of the first release went: their old names still import, with a `DeprecationWarning`.

Only modules that users were shown are listed; what was internal has moved without a trace.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "bounds": "protocols.bounds",
    "bounds.histogram": "protocols.bounds.histogram",
    "bounds.quantile": "protocols.bounds.quantile",
    "bounds.quantile_of_quantiles": "protocols.bounds.quantile_of_quantiles",
    "calibration": "result.calibration",
    "certificate": "result.certificate",
    "data.model_outputs": "io.model_outputs",
    "data.output_files": "io.output_files",
    "data.score_files": "io.score_files",
    "data.score_folders": "io.score_folders",
    "data.tables": "io.tables",
    "data.writing": "io.writing",
    "engines.device": "peer.device",
    "engines.frames": "peer.frames",
    "engines.journal": "peer.journal",
    "engines.loopback": "peer.loopback",
    "evaluation": "result.evaluation",
    "network": "graph.network",
    "node": "mesh.http.client",
    "planning.sketch": "graph.sketch",
    "plot_plan": "plots.plan",
    "ranks": "promises",
    "several": "calibrating",
    "spectrum": "graph.spectrum",
    "topologies": "graph.topologies",
    "weights": "graph.weights",
}


class _MovedFinder:
    """Answers for the old names: the module at the new place, itself and not a copy.

    A finder and a loader by what it can do; `importlib.abc` would load a third of the standard library for two names.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, name = fullname.partition(".")
        mine = package == "conformesh" and name in MOVED
        return ModuleSpec(fullname, self) if mine else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        new = f"conformesh.{MOVED[spec.name.partition('.')[2]]}"
        warnings.warn(f"{spec.name} is now {new}; import it from there", DeprecationWarning, stacklevel=2)
        module = import_module(new)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import system has just given it that of the old name


def keep_old_names() -> None:
    """Let the old names import; first on the path, or a package under its old name would load its modules twice."""
    if not any(isinstance(finder, _MovedFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _MovedFinder())
