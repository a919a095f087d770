import numpy as np
import pytest

from conformesh.kernels.gossip import gossip_step

pytestmark = pytest.mark.usefixtures("way")


@pytest.mark.parametrize("shape", [(4,), (4, 3), (4, 3, 2)])
def test_gossip_step_equals_the_formula_and_knows_its_own_value(shape):
    rng = np.random.default_rng(0)
    x, heard, strength = rng.random(shape), rng.random(shape), rng.random(4)
    wide = strength.reshape(-1, *[1] * (len(shape) - 1))
    expected = x + 0.3 * (heard - wide * x)
    rounded = x.astype(np.float16)
    expected_rounded = x + 0.3 * (heard - wide * rounded.astype(np.float64))
    for sent, right in ((None, expected), (x.copy(), expected), (rounded, expected_rounded)):
        mine = x.copy()
        gossip_step(mine, heard, mine if sent is None else sent, strength, 0.3)
        np.testing.assert_array_equal(mine, right)
