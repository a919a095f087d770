"""Each check of a sentence holds on curves made to satisfy it, and fails on curves made not to."""

import math

import pytest

from conformesh.lab.reproduction import findings
from conformesh.lab.reproduction.findings import (
    ERRORS,
    GRAIN,
    curve_covers,
    curve_covers_at_first_only,
    curve_is_close_to,
    curve_is_smaller,
    curve_is_u_shaped,
    curve_undercovers,
    denser_graphs_are_smaller,
    denser_graphs_converge_sooner,
    more_bins_help_where_connected,
    paper_ranks_fall_short,
    paper_ranks_suffice,
    set_size_falls,
    spectral_gap_rises,
)
from tests.lab.reproduction.handmade import curves, sizes, value


def coverages(**lines):
    """Curves at alpha = 0.5, 0.3, 0.1 whose points stand at their levels."""
    return curves(
        {
            line: {
                1 - alpha: value(coverage, alpha=alpha) for alpha, coverage in zip((0.5, 0.3, 0.1), given, strict=True)
            }
            for line, given in lines.items()
        }
    )


GOOD, LOW, LOW_EARLY = (0.52, 0.71, 0.905), (0.52, 0.71, 0.88), (0.45, 0.71, 0.91)
LINES = {"chain": 50.0, "cycle": 20.0, "star": 12.0, "torus": 11.0, "complete": 11.0}

CASES = {  # check, curves on which it holds, curves on which it fails
    "covers": (curve_covers(), coverages(chain=GOOD, star=GOOD, CP=LOW), coverages(chain=GOOD, star=LOW_EARLY)),
    "covers, named lines": (curve_covers("CP"), coverages(chain=LOW, CP=GOOD), coverages(chain=GOOD, CP=LOW)),
    "undercovers": (
        curve_undercovers("star", "torus"),
        coverages(star=LOW, torus=LOW_EARLY),
        coverages(star=LOW, torus=GOOD),
    ),
    "covers at first only": (
        curve_covers_at_first_only("torus"),
        coverages(torus=LOW),
        coverages(torus=LOW_EARLY),
    ),
    "covers at first and last": (curve_covers_at_first_only("torus"), coverages(torus=LOW), coverages(torus=GOOD)),
    "ranks suffice": (
        paper_ranks_suffice(),
        curves({"chain": {1: value()}, "CP": {1: value(rank_short=1.0)}}),
        curves({"chain": {1: value(), 2: value(rank_short=0.1)}}),
    ),
    "ranks fall short": (
        paper_ranks_fall_short("Q-DCP"),
        curves({"Q-DCP": {1: value(), 2: value(rank_short=0.1)}}),
        curves({"Q-DCP": {1: value()}, "chain": {1: value(rank_short=0.5)}}),
    ),
    "denser graphs are smaller": (
        denser_graphs_are_smaller(),
        sizes(**{line: (size, size) for line, size in LINES.items()}),
        sizes(**{line: (size, size) for line, size in (LINES | {"star": 30.0}).items()}),
    ),
    "denser graphs may be equal to a percent": (
        denser_graphs_are_smaller(),
        sizes(chain=(50,), torus=(11.0,), complete=(11.05,)),
        sizes(chain=(50,), torus=(11.0,), complete=(11.2,)),
    ),
    "denser graphs are smaller on average": (
        denser_graphs_are_smaller(),
        sizes(chain=(10, 90), complete=(20, 30)),
        sizes(chain=(10, 30), complete=(20, 30)),
    ),
    "denser graphs converge sooner": (
        denser_graphs_converge_sooner(),
        sizes(chain=(100, 100, 100, 10), cycle=(100, 100, 10, 10), complete=(100, 10, 10, 10)),
        sizes(chain=(100, 10, 10, 10), cycle=(100, 100, 10, 10), complete=(100, 10, 10, 10)),
    ),
    "denser graphs converge sooner than never": (
        denser_graphs_converge_sooner(),
        sizes(chain=(100, 100, 100), complete=(100, 10, 10)),
        sizes(chain=(100, 10, 10), complete=(10, 10, 12)),
    ),
    "converges for good": (
        denser_graphs_converge_sooner(),
        sizes(chain=(10, 100, 10), complete=(100, 10, 10)),
        sizes(chain=(10, 10, 10), complete=(10, 100, 10)),
    ),
    "is close to": (
        curve_is_close_to("torus", "CP", 0.1),
        sizes(torus=(99, 10.9), CP=(1, 10)),
        sizes(torus=(8.9,), CP=(10,)),
    ),
    "is smaller": (curve_is_smaller("torus", "CP"), sizes(torus=(99, 9), CP=(1, 10)), sizes(torus=(10,), CP=(10,))),
    "is u-shaped": (curve_is_u_shaped("torus"), sizes(torus=(12, 10, 11)), sizes(torus=(12, 10, 10.4))),
    "is u-shaped at the left": (curve_is_u_shaped("torus"), sizes(torus=(11, 10, 12)), sizes(torus=(10, 10, 12))),
    "size falls": (set_size_falls("torus"), sizes(torus=(10, 20, 9)), sizes(torus=(10, 5, 10))),
    "spectral gap rises": (
        spectral_gap_rises(0.44, 0.68),
        curves({"Q-DCP": {20: value(gap=0.42), 40: value(gap=0.1), 80: value(gap=0.71)}}),
        curves({"Q-DCP": {20: value(gap=0.42), 80: value(gap=0.73)}}),
    ),
    "more bins help where connected": (
        more_bins_help_where_connected(),
        sizes(complete=(20, 12, 11), cycle=(20, 15, 40), chain=(100, 100, 100)),
        sizes(complete=(20, 12, 11), cycle=(20, 15, 14), chain=(100, 100, 100)),
    ),
    "finer helps on the complete graph": (
        more_bins_help_where_connected(),
        sizes(complete=(20, 12, 11), cycle=(20, 15, 14), chain=(30, 100, 100)),
        sizes(complete=(20, 12, 20), cycle=(20, 15, 40), chain=(100, 100, 100)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_holds_and_fails(name):
    check, good, poor = CASES[name]
    for curves_, expected in ((good, True), (poor, False)):
        holds, figures = check(curves_)
        assert holds is expected, figures
        assert figures


def test_every_check_is_tried_here():
    public = {
        name
        for name, each in vars(findings).items()
        if callable(each) and getattr(each, "__module__", "") == findings.__name__ and not name.startswith("_")
    }
    tried = {check.__qualname__.split(".")[0] for check, _, _ in CASES.values()}
    assert tried == public - {"Check", "Finding"}


def test_below_means_by_more_than_noise():
    """Three standard errors of the draws and a thousandth."""
    noise = ERRORS * 0.02 / math.sqrt(10) + GRAIN
    for gap, expected in ((noise * 0.99, True), (noise * 1.01, False)):
        found = curves({"chain": {0.9: value(0.9 - gap, coverage_std=0.02)}})
        assert curve_covers()(found)[0] is expected
        assert curve_undercovers("chain")(found)[0] is not expected


def test_figures_name_the_worst_point():
    holds, figures = curve_covers()(coverages(chain=GOOD, star=(0.52, 0.6, 0.88)))
    assert (holds, figures) == (False, "star: 0.600 below 0.7 (x = 0.7)")
    holds, figures = paper_ranks_suffice()(
        curves({"chain": {5: value(rank_short=0.2)}, "star": {7: value(rank_short=0.3)}})
    )
    assert (holds, figures) == (False, "up to 30% of the draws fall short (star, x = 7)")
    assert (
        denser_graphs_converge_sooner()(CASES["denser graphs converge sooner than never"][1])[1]
        == "settled at chain later, complete 2"
    )
