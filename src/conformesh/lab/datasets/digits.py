"""The demo's data: handwritten digits with the outputs of a small classifier, spread unevenly over devices.

The 1797 images come with scikit-learn. A few train a plain logistic regression, few enough that it errs; the others are
spread over the devices by a Dirichlet draw for each class, so that devices differ in size and in what they see.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from conformesh.common.array_types import Ints
from conformesh.common.random_streams import Rng, random_stream, resolve_seed

TRAINING_IMAGES = 80  # eight of each digit: few enough that the classifier errs and sets have more than one label
LEAST_IMAGES = 3  # images that every device has: one to calibrate with, two to test on
_UNEVENNESS = 0.5  # concentration of the Dirichlet draws; smaller is more uneven. A usual choice in federated learning


@dataclass(frozen=True, eq=False)
class Digits:
    """Images on devices, with the outputs of the classifier.

    Attributes
    ----------
    probabilities
        Outputs of the classifier, shape (images, 10).
    labels
        The digits, shape (images,).
    rows
        The images of each device.
    accuracy
        How often the most probable digit is the right one.
    """

    probabilities: NDArray[np.float64]
    labels: Ints
    rows: tuple[Ints, ...]
    accuracy: float


@dataclass(frozen=True, eq=False)
class DigitsSplit:
    """One random split of every device's images.

    A device that calibrates with n_k images is tested on n_k + 1. So a row drawn from all test rows is at device k with
    probability proportional to n_k + 1: exactly the mixture of the guarantee, without weighting. And since each
    device's images are split at random, the guarantee holds for these images as they are: it is an average over splits,
    and more splits come closer to it.
    """

    calibration: tuple[Ints, ...]
    test: Ints
    device: Ints


def load_digits_on_devices(devices: int, seed: int = 0, *, rng: Rng | None = None) -> Digits:
    """Train the classifier, and spread the other images over the devices."""
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression

    seed = resolve_seed(rng, seed)
    images, labels = load_digits(return_X_y=True)
    most = (len(images) - TRAINING_IMAGES) // LEAST_IMAGES
    if not 1 <= devices <= most:
        raise ValueError(f"the demo needs 1 to {most} devices, so that each has {LEAST_IMAGES} images, got {devices}")
    order = random_stream(seed, "training").permutation(len(images))
    order = order[np.argsort(_turn(labels[order]), kind="stable")]  # the first of each digit, then the second of each
    train, rest = order[:TRAINING_IMAGES], order[TRAINING_IMAGES:]
    model = LogisticRegression(max_iter=1000).fit(images[train] / 16, labels[train])
    # Single precision, as most models return: results do not depend on the order in which a machine adds.
    probabilities = model.predict_proba(images[rest] / 16).astype(np.float32).astype(np.float64)
    accuracy = float((model.classes_[probabilities.argmax(axis=1)] == labels[rest]).mean())
    return Digits(probabilities, labels[rest].astype(np.int64), _spread(labels[rest], devices, seed), accuracy)


def _turn(labels: Ints) -> Ints:
    """Count for each entry how often its label came before."""
    turn = np.empty(len(labels), np.int64)
    for label in np.unique(labels):
        of_label = np.flatnonzero(labels == label)
        turn[of_label] = np.arange(len(of_label))
    return turn


def _spread(labels: Ints, devices: int, seed: int) -> tuple[Ints, ...]:
    """Deal out every class by its own Dirichlet draw, then let the largest devices give to those with too few."""
    rng = random_stream(seed, "devices")
    home = np.empty(len(labels), np.int64)
    for label in np.unique(labels):
        of_label = np.flatnonzero(labels == label)
        home[of_label] = rng.choice(devices, size=len(of_label), p=rng.dirichlet(np.full(devices, _UNEVENNESS)))
    sizes = np.bincount(home, minlength=devices)
    while sizes.min() < LEAST_IMAGES:
        giver, taker = int(sizes.argmax()), int(sizes.argmin())
        home[rng.choice(np.flatnonzero(home == giver))] = taker
        sizes[giver] -= 1
        sizes[taker] += 1
    return tuple(np.flatnonzero(home == device) for device in range(devices))


def split_digits(digits: Digits, seed: int = 0, number: int = 0, *, rng: Rng | None = None) -> DigitsSplit:
    """Draw the split of that number: of 2 m or 2 m - 1 images a device calibrates with m - 1 and is tested on m."""
    drawing = random_stream(resolve_seed(rng, seed), "split", number)
    calibration, test = [], []
    for rows in digits.rows:
        half = (len(rows) + 1) // 2
        drawn = drawing.permutation(rows)
        calibration.append(drawn[: half - 1])
        test.append(drawn[half - 1 : 2 * half - 1])
    device = np.repeat(np.arange(len(test)), [len(rows) for rows in test])
    return DigitsSplit(tuple(calibration), np.concatenate(test), device)
