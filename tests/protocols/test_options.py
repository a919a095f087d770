"""Types of options: what an alias stands for."""

from typing import Union

import numpy as np
import pytest
from numpy.typing import NDArray

from conformesh.protocols.options import convert_option


class Alias:
    """A type with a name, as `type NDArray[...] = ...` makes it, on every interpreter."""

    __value__ = NDArray[np.float64]

    def __call__(self):
        """Types can be called, or a union refuses them."""


@pytest.mark.parametrize("kind", [NDArray[np.float64], Alias()], ids=["class", "alias"])
def test_an_array_is_taken_whatever_numpy_makes_of_its_type(kind):
    """From NumPy 2.5 on `NDArray` is an alias with a name, whose value is the class."""
    given, hint = np.ones(2), Union[str, kind]  # noqa: UP007 - an alias made here has no `|`
    assert convert_option(given, hint, "weights") is given
    with pytest.raises(ValueError, match="weights must be text or ndarray, got 3"):
        convert_option(3, hint, "weights")
