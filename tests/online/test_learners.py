"""Learners equal slow versions of what was published, on ELEC2 and two synthetic shifts; states are never changed."""

import numpy as np
import pytest

from conformesh.online import ACI, LEARNERS, PID, SFOGD, Decaying, DtACI, QuantileTracker, Smoothing
from tests.online import elec2, reference

ALPHA = 0.1


def jump():
    """Scores that double at once."""
    return np.abs(np.random.default_rng(1).standard_normal(1200)) * np.where(np.arange(1200) < 600, 0.1, 0.2)


def swell():
    """Scores that come and go."""
    return np.abs(np.random.default_rng(2).standard_normal(1200)) * (0.15 + 0.1 * np.sin(np.arange(1200) / 150))


STREAMS = {"elec2": lambda: elec2.stream()[:2000], "jump": jump, "swell": swell}
PAIRS = {
    "tracker": (QuantileTracker(ALPHA, 0.05, high=9.0), lambda s: reference.tracker(s, ALPHA, 0.05)),
    "decaying": (Decaying(ALPHA, 0.5, high=9.0, decay=0.6), lambda s: reference.decaying(s, ALPHA, 0.5, 0.6)),
    "aci": (ACI(ALPHA, 0.01, window=300), lambda s: reference.aci(s, ALPHA, 0.01, 300)),
    "dtaci": (DtACI(ALPHA, window=2000), lambda s: reference.dtaci(s, ALPHA, DtACI().gammas, 500)),
    "pid": (PID(ALPHA, 0.1), lambda s: reference.pid(s, ALPHA, 0.1, 10.0, 5.0, 300)),
    "sf-ogd": (SFOGD(ALPHA, 1.0, high=9.0), lambda s: reference.sf_ogd(s, ALPHA, 1.0)),
}


def followed(learner, scores):
    """Thresholds of a learner along one stream."""
    state, one, thresholds = learner.begin(1), np.ones(1, dtype=bool), np.empty(len(scores))
    for t, score in enumerate(scores):
        thresholds[t] = learner.threshold(state)[0]
        state = learner.observe(state, np.array([score]), one)
    return thresholds


@pytest.mark.parametrize("name", sorted(STREAMS))
@pytest.mark.parametrize("which", sorted(PAIRS))
def test_learners_equal_what_was_published(which, name):
    """Coverage within .002 and width within 1 %; thresholds alike but where conventions differ (SF-OGD below 0)."""
    learner, slow = PAIRS[which]
    scores = STREAMS[name]()
    found, wanted = followed(learner, scores), slow(scores)
    assert abs(np.mean(scores <= found) - np.mean(scores <= wanted)) <= 0.002
    top = scores.max()
    widths = np.clip(found, 0, top).mean(), np.clip(wanted, 0, top).mean()
    assert abs(widths[0] / widths[1] - 1) <= 0.01
    if which != "sf-ogd":
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)


def test_every_learner_has_its_slow_version():
    assert PAIRS.keys() == LEARNERS.keys()


@pytest.mark.parametrize("which", sorted(LEARNERS))
def test_devices_learn_apart_and_only_from_their_labels(which):
    """Two streams at once equal each alone, and a device without label stays where it is."""
    learner = PAIRS[which][0]
    a, b = jump()[:60], swell()[:60]
    state, thresholds = learner.begin(2), np.empty((2, 60))
    for t in range(60):
        thresholds[:, t] = learner.threshold(state)
        has_label = np.array([True, t % 3 != 0])
        state = learner.observe(state, np.array([a[t], np.nan if t % 3 == 0 else b[t]]), has_label)
    np.testing.assert_allclose(thresholds[0], followed(learner, a), rtol=1e-12)
    if which != "decaying":  # its clock is common
        kept = [t for t in range(60) if t % 3]
        np.testing.assert_allclose(thresholds[1][kept], followed(learner, b[kept]), rtol=1e-12)


@pytest.mark.parametrize("which", sorted(LEARNERS))
def test_observing_changes_no_earlier_state(which):
    learner, one = PAIRS[which][0], np.ones(1, dtype=bool)
    state = learner.begin(1)
    for score in jump()[:20]:
        state = learner.observe(state, np.array([score]), one)
    before = learner.threshold(state)
    twice = [learner.threshold(learner.observe(state, np.array([0.5]), one)) for _ in range(2)]
    np.testing.assert_array_equal(learner.threshold(state), before)
    np.testing.assert_array_equal(*twice)


def test_a_label_counts_by_the_threshold_it_was_predicted_with():
    learner, one = QuantileTracker(ALPHA, 0.1, start=0.5), np.ones(1, dtype=bool)
    state = learner.begin(1)
    assert learner.observe(state, np.array([0.4]), one, ~one).level[0] == pytest.approx(0.49)
    assert learner.observe(state, np.array([0.4]), one, one).level[0] == pytest.approx(0.59)


def test_a_scorecaster_is_added():
    """A tracker that stands still leaves the forecast alone."""
    scores, smooth, wanted = jump()[:50], 0.0, []
    for score in scores:
        wanted.append(smooth)
        smooth += 0.5 * (score - smooth)
    found = followed(PID(ALPHA, step=1e-12, gain=0.0, scorecaster=Smoothing(0.5)), scores)
    np.testing.assert_allclose(found, wanted, atol=1e-9)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: QuantileTracker(1.2), "alpha must lie strictly between 0 and 1, got 1.2"),
        (lambda: QuantileTracker(step=0), "step must be above 0 and finite, got 0"),
        (lambda: QuantileTracker(start=2.0), "start must lie between 0 and high 1, got 2"),
        (lambda: Decaying(decay=1.0), "decay must be at least 0 and below 1"),
        (lambda: Decaying(floor=1.0), "floor must lie between 0 and the first step 0.5, got 1"),
        (lambda: ACI(high=2.0), "high must be 1, got 2"),
        (lambda: ACI(window=0).begin(1), "window must be at least 1 score, got 0"),
    ],
)
def test_options_that_cannot_be(make, words):
    with pytest.raises(ValueError, match=words):
        make()
