"""Learners have the figures of published implementations, run once on the same scores: coverage and mean threshold.

Nothing of those implementations is here. Each was run as it is, at the version named below, by NumPy 1.26 or R 4.2; the
figures are what came out, thresholds cut to between 0 and the largest score. Streams are those of `test_learners`: the
first 2,000 scores of ELEC2 and all of them, a jump and a swell.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.signal import lfilter

from conformesh.online import ACI, LEARNERS, PID, SFOGD, Decaying, DtACI, QuantileTracker
from tests.online import elec2
from tests.online.test_learners import ALPHA, followed, jump, swell

STREAMS = {"elec2": lambda: elec2.stream()[:2000], "all of elec2": elec2.stream, "jump": jump, "swell": swell}
ALL = 50_000  # more scores than any stream has


class Theta:
    """The scorecaster of conformal-time-series: Theta's forecast, from the first `after` scores on.

    As there it lags: what is forecast for one example is used for the next. A twin of ThetaModel of statsmodels 0.15
    without a season, from its documentation: forecasts agree within 2e-5.
    """

    def __init__(self, after):
        self.after = after

    def begin(self, devices):
        return np.zeros(0), np.zeros(devices)

    def cast(self, memory):
        return memory[1]

    def learn(self, memory, score, has_label):
        past = memory[0]
        return np.append(past, score), np.array([self.forecast(past) if len(past) > self.after else 0.0])

    def forecast(self, y):
        def levels(a):
            return lfilter([a], [1, a - 1], y, zi=[(1 - a) * y[0]])[0]

        def squares(a):
            return np.sum((y[1:] - levels(a)[:-1]) ** 2)

        a = minimize_scalar(squares, bounds=(0, 1), method="bounded", options={"xatol": 1e-6}).x
        slope = np.polyfit(np.arange(len(y)), y, 1)[0]
        return levels(a)[-1] + slope / 2 * (1 - (1 - a) ** len(y)) / a


@dataclass(frozen=True)
class Published:
    """Figures of an implementation: coverage and mean threshold of each stream, from its example `first` on."""

    learner: Any
    figures: dict[str, tuple[float, float]]
    first: int = 0


PUBLISHED = {
    # online-conformal-decaying 8db0de3, get_online_quantile(scores, 0, [.05, ...], .1); conformal-time-series a1e9765,
    # quantile(scores, .1, .05, ahead=1, proportional_lr=False), has the same
    "tracker": Published(
        QuantileTracker(ALPHA, 0.05, high=9.0),
        {
            "elec2": (0.899000, 0.093347),
            "all of elec2": (0.899920, 0.100745),
            "jump": (0.894167, 0.254458),
            "swell": (0.891667, 0.276083),
        },
    ),
    # online-conformal-decaying 8db0de3, get_online_quantile(scores, 0, .5 t ** -.6, .1)
    "decaying": Published(
        Decaying(ALPHA, 0.5, high=9.0, decay=0.6),
        {
            "elec2": (0.899500, 0.127442),
            "all of elec2": (0.899898, 0.156168),
            "jump": (0.885000, 0.240832),
            "swell": (0.887500, 0.277028),
        },
    ),
    # conformal-time-series a1e9765, aci(scores, .1, .005, window_length=500, T_burnin=-1, ahead=1): it learns from the
    # first example on. It compares levels with the number of all scores so far, ours with those that are kept
    "aci": Published(
        ACI(ALPHA, 0.005, window=500),
        {
            "elec2": (0.900500, 0.142287),
            "all of elec2": (0.899766, 0.160319),
            "jump": (0.896667, 0.255485),
            "swell": (0.885833, 0.294166),
        },
    ),
    # the same with lr=.01, window_length=300: here comparing with all scores makes a difference, of .05 % in width
    "aci, fast": Published(
        ACI(ALPHA, 0.01, window=300),
        {
            "elec2": (0.900500, 0.134840),
            "all of elec2": (0.899876, 0.151865),
            "jump": (0.897500, 0.257275),
            "swell": (0.893333, 0.288107),
        },
    ),
    # isgibbs/DtACI 09ab167, conformalAdaptStable(betas, .1, .001 * 2^(0:7)), with its sigma = 1/1000 and eta = 2.72.
    # It takes ranks: shares of all earlier scores that are no smaller, from the twelfth example on. A level of at most
    # 0 covers every rank, which is an infinite threshold
    "dtaci": Published(
        DtACI(ALPHA, window=ALL),
        {
            "elec2": (0.907491, 0.094957),
            "all of elec2": (0.905244, 0.105716),
            "jump": (0.888141, 0.245219),
            "swell": (0.898234, 0.280663),
        },
        first=11,
    ),
    # online-conformal 1.0.2 (PyPI), FACI(None, None), one residual after the other; it cuts levels, and its eta has a
    # factor of sqrt(3) too much, see `DtACI`
    "dtaci, cut": Published(
        DtACI(ALPHA, interval=100, window=ALL, rate=9.823222, clipped=True),
        {
            "elec2": (0.884000, 0.083355),
            "all of elec2": (0.893469, 0.092690),
            "jump": (0.883333, 0.242453),
            "swell": (0.890000, 0.272127),
        },
    ),
    # conformal-time-series a1e9765, quantile(scores, .1, .1, ahead=1, T_burnin=300): P alone
    "pid, P": Published(
        PID(ALPHA, 0.1, gain=0.0),
        {
            "elec2": (0.902500, 0.096885),
            "all of elec2": (0.897601, 0.105534),
            "jump": (0.891667, 0.249324),
            "swell": (0.887500, 0.276937),
        },
    ),
    # the same, quantile_integrator_log(scores, .1, .1, Csat=5, KI=10, ahead=1, T_burnin=300): PI
    "pid": Published(
        PID(ALPHA, 0.1),
        {
            "elec2": (0.898000, 0.102466),
            "all of elec2": (0.897247, 0.105388),
            "jump": (0.895000, 0.265796),
            "swell": (0.892500, 0.285055),
        },
    ),
    # the same, quantile_integrator_log_scorecaster(scores, .1, .1, None, T_burnin=300, Csat=5, KI=10, upper=True,
    # ahead=1), with statsmodels 0.15 and no season: PI and the scorecaster
    "pid, scorecaster": Published(
        PID(ALPHA, 0.1, scorecaster=Theta(after=300)),
        {"elec2": (0.898500, 0.097798), "jump": (0.897500, 0.272040), "swell": (0.895000, 0.290714)},
    ),
    # online-conformal 1.0.2 (PyPI), ScaleFreeOGD(None, None, max_scale=1), one residual after the other. It keeps
    # thresholds at 0 and above, which the paper does not: .27 % in width
    "sf-ogd": Published(
        SFOGD(ALPHA, 1.0, high=9.0),
        {
            "elec2": (0.900000, 0.102822),
            "all of elec2": (0.899744, 0.129079),
            "jump": (0.897500, 0.262766),
            "swell": (0.895833, 0.289459),
        },
    ),
}
SLOW = {("pid, scorecaster", "elec2"), *((which, "all of elec2") for which in PUBLISHED)}
CASES = [
    pytest.param(
        which,
        stream,
        id=f"{which} on {stream}",
        marks=[pytest.mark.shared_data] * ("elec2" in stream) + [pytest.mark.slow] * ((which, stream) in SLOW),
    )
    for which, published in PUBLISHED.items()
    for stream in published.figures
]


@pytest.mark.parametrize(("which", "stream"), CASES)
def test_learners_have_published_figures(which, stream):
    """Coverage within .002 and width within 1 %, which is what was asked; but for SF-OGD and ACI they are alike."""
    published = PUBLISHED[which]
    scores = STREAMS[stream]()
    thresholds = followed(published.learner, scores)[published.first :]
    coverage, width = published.figures[stream]
    kept = scores[published.first :]
    assert np.mean(kept <= thresholds) == pytest.approx(coverage, abs=0.002)
    assert np.clip(thresholds, 0, scores.max()).mean() == pytest.approx(width, rel=0.01)


def test_every_learner_has_published_figures():
    assert {type(published.learner) for published in PUBLISHED.values()} == {*LEARNERS.values()}


def test_another_option_would_have_other_figures():
    """The comparison can fail: a step a fifth larger, a cut level, or another decay or window is not close enough."""
    scores = jump()
    for which, other in {
        "tracker": QuantileTracker(ALPHA, 0.06, high=9.0),
        "decaying": Decaying(ALPHA, 0.5, high=9.0, decay=0.55),
        "aci": ACI(ALPHA, 0.005, window=100),
        "dtaci": DtACI(ALPHA, window=ALL, clipped=True),
        "pid": PID(ALPHA, 0.12),
        "sf-ogd": SFOGD(ALPHA, 1.2, high=9.0),
    }.items():
        thresholds = followed(other, scores)[PUBLISHED[which].first :]
        coverage, width = PUBLISHED[which].figures["jump"]
        near = abs(np.mean(scores[PUBLISHED[which].first :] <= thresholds) - coverage) <= 0.002
        assert not (near and np.clip(thresholds, 0, scores.max()).mean() == pytest.approx(width, rel=0.01)), which
