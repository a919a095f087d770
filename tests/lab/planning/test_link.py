"""Links in words."""

import pytest

from conformesh.lab.planning.link import Link


@pytest.mark.parametrize(
    ("text", "latency", "bandwidth"),
    [
        ("100ms,1Mbit", 0.1, 1e6),
        ("1Mbit, 100 ms", 0.1, 1e6),
        ("50us,10Gbit", 50e-6, 1e10),
        ("50µs,10Gbit", 50e-6, 1e10),
        ("2s,9.6kbit/s", 2.0, 9600),
        ("0ms,20kB/s", 0.0, 160e3),
        ("1ms,5MB", 1e-3, 40e6),
        ("1ms,100Mbitps", 1e-3, 1e8),
        ("1e-3s,1e3kbit", 1e-3, 1e6),
    ],
)
def test_latency_and_bandwidth_in_words(text, latency, bandwidth):
    link = Link.parse(text)
    assert link.latency == pytest.approx(latency, rel=1e-12)
    assert link.bandwidth == pytest.approx(bandwidth, rel=1e-12)
    again = Link.parse(str(link))
    assert (again.latency, again.bandwidth) == pytest.approx((link.latency, link.bandwidth))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("100ms", "LATENCY,BANDWIDTH"),
        ("", "LATENCY,BANDWIDTH"),
        ("100ms,1Mbit,2s", "LATENCY,BANDWIDTH"),
        ("100ms,2s", "no bandwidth"),
        ("1Mbit,2kB", "no latency"),
        ("100ms,1mbit", "did you mean 'Mbit'"),
        ("100 parsecs,1Mbit", "unknown unit 'parsecs'"),
        ("fast,1Mbit", "got 'fast'"),
        ("-1ms,1Mbit", "got '-1ms'"),
        ("100ms,0Mbit", "bandwidth above 0"),
        ("1.2.3ms,1Mbit", "no number"),
    ],
)
def test_what_is_no_link_is_an_error_that_helps(text, words):
    with pytest.raises(ValueError, match=words):
        Link.parse(text)
