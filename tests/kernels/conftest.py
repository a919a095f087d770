"""Every test of a kernel runs twice: in NumPy, and compiled."""

import math

import pytest

from conformesh.kernels import compilation as compiling


@pytest.fixture(scope="module", params=["numpy", "compiled"])
def way(request):
    """How the kernels of this module run, whatever the work; `test_compilation` alone does without."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiling, "_loaded", {})
        patch.setattr(compiling, "LOADING", math.inf if request.param == "numpy" else -1.0)
        yield request.param


def assert_same_bits(one, other):
    assert one.dtype == other.dtype
    assert one.shape == other.shape
    assert one.tobytes() == other.tobytes()
