"""Releases for tests of what keeps them."""

from conformesh.privacy.histogram import HistogramPlan

PLAN = HistogramPlan(grid="logit", cells=4, epsilon=1.0, devices=3, honest=2)


def a_release(number=0):
    """Return a release of one plan; others have other totals."""
    return PLAN.release([10 + number, 3, 2, 1], epochs=(1,))
