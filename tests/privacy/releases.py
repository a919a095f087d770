"""Releases for tests of what keeps them."""

from conformesh.privacy.histogram import Release


def a_release(number=0):
    """Return a release of one plan; others have other totals."""
    return Release((10 + number, 3, 2, 1))
