"""One body serves all engines: a block of one device each, in lockstep, gives the simulator's bits."""

import numpy as np
import pytest

from conformesh import METHODS, Network, Samples, calibrate_batch
from conformesh.methods import make_options
from conformesh.promises import exact_alpha
from conformesh.protocols.aggregate import AGGREGATORS
from conformesh.protocols.site import Site
from tests.lockstep import run_in_blocks

OPTIONS = {
    "e-dcp": [{"aggregate": name, "width": 2} for name in AGGREGATORS] + [{}],
    "q-dcp": [{"rounds": 30}, {"rounds": 30, "s0": "min", "wire": 32}, {"rounds": 5, "bound": "paper"}],
    "h-dcp": [
        {"bins": 20},
        {"bins": 20, "rounds": 25, "weights": "metropolis", "wire": 16},
        {"bins": 5, "spectrum": "estimated"},
    ],
}
CASES = [(name, options) for name in METHODS for options in OPTIONS.get(name, [{}])]


@pytest.mark.parametrize(
    ("name", "options"), CASES, ids=lambda x: str(x) if isinstance(x, str) else "-".join(map(str, x))
)
@pytest.mark.parametrize("network", [Network.chain(4), Network.star(5), Network.torus(3, 3)], ids=lambda n: n.name)
def test_blocks_of_one_equal_the_simulator(name, options, network):
    rng = np.random.default_rng(0)
    scores = [rng.normal(size=k) for k in rng.integers(0, 12, network.devices)]
    alphas = (0.3, 0.5)
    whole = calibrate_batch(Samples.of(scores), network, alphas, name, **options).outcome
    sizes = np.array([[len(s)] for s in scores])
    blocks = [
        METHODS[name].protocol(
            Site(network, np.array([k]), sizes),
            Samples.of([scores[k]]),
            tuple(map(exact_alpha, alphas)),
            make_options(name, options),
        )
        for k in range(network.devices)
    ]
    for k, outcome in enumerate(run_in_blocks(network, blocks)):
        np.testing.assert_array_equal(outcome.thresholds[0], whole.thresholds[k])
        if name != "local":  # where every device answers for itself, a block certifies its own devices
            assert outcome.certificates == whole.certificates
