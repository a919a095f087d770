"""Results in words: one line for a cost, a table for several answers."""

import numpy as np

from conformesh import Cost, Network, calibrate

RNG = np.random.default_rng(0)
HELD = [RNG.random(40) for _ in range(5)]


def test_a_cost_is_a_line_and_several_answers_are_a_table():
    cost = Cost(1, np.array([24.0, 24.0, 25.0]), np.array([1536.0, 1536.0, 1600.0]))
    assert str(cost) == "1 round, 24.3 numbers and 1,557 bits per device"
    several = calibrate(HELD, Network.cycle(5), (0.1, 0.2), groups=[["cat"] * 20 + ["kangaroo"] * 20] * 5)
    head, columns, *rows = repr(several).split("\n")
    assert head.startswith("Result(e-dcp on 5 devices; ")
    assert columns.split() == ["group", "alpha", "0.1", "alpha", "0.2"]
    assert [row.split() for row in rows] == [
        [group, *(f"{several[group, alpha].threshold:.6g}" for alpha in (0.1, 0.2))] for group in several.groups
    ]
    many = calibrate([np.arange(250.0)], "chain", (0.6,), groups=[np.arange(250) // 10])
    assert repr(many).endswith("... and 5 more")
    assert "array" not in repr(many)
