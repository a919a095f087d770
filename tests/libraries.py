"""Other libraries, installed only to compare with; without one, its tests are skipped with the reason."""

import importlib
import importlib.util
import sys
import types

import pytest


def mapie(part):
    """Import a part of MAPIE."""
    return pytest.importorskip(f"mapie.{part}", reason="compares with MAPIE: pip install mapie")


def crepes(part):
    """Import a part of crepes."""
    return pytest.importorskip(f"crepes.{part}", reason="compares with crepes: pip install crepes")


def torchcp(part):
    """Import a part of TorchCP, without those parts of it that need a compiler or a model hub."""
    pytest.importorskip("torch", reason="compares with TorchCP: pip install torch")
    found = importlib.util.find_spec("torchcp") if "torchcp" not in sys.modules else sys.modules["torchcp"].__spec__
    if found is None:
        pytest.skip("compares with TorchCP: pip install --no-deps torchcp")
    if "torchcp" not in sys.modules:
        whole = types.ModuleType("torchcp")
        whole.__path__, whole.__spec__ = [*found.submodule_search_locations], found
        sys.modules["torchcp"] = whole
    if importlib.util.find_spec("torchsort") is None:  # for a training loss only
        stand_in = types.ModuleType("torchsort")
        stand_in.__spec__ = importlib.util.spec_from_loader("torchsort", None)
        stand_in.soft_rank = stand_in.soft_sort = None
        sys.modules["torchsort"] = stand_in
    try:
        return importlib.import_module(f"torchcp.{part}")
    except ModuleNotFoundError as missing:
        pytest.skip(f"compares with TorchCP, which needs {missing.name}: pip install {missing.name}")
