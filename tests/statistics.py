"""Assertions about chance, each with its error rate written down."""

from scipy import stats


def assert_coverage(hits: int, trials: int, target: float, *, false_alarm: float = 1e-6) -> None:
    """Pass unless `hits` would be this low with probability below `false_alarm` at coverage `target`."""
    p = stats.binom.cdf(hits, trials, target)
    assert p > false_alarm, f"covered {hits}/{trials}, target {target}: chance {p:.1e} if valid"


def power_against(trials: int, target: float, truth: float, *, false_alarm: float = 1e-6) -> float:
    """Return the chance that `assert_coverage` goes red when the real coverage is `truth`."""
    limit = stats.binom.ppf(false_alarm, trials, target)
    while stats.binom.cdf(limit, trials, target) > false_alarm:
        limit -= 1
    return float(stats.binom.cdf(limit, trials, truth))
