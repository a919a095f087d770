"""Adapted prediction written from the theorem, with all data in one place: slow, plain, and without the code it checks.

`pooled_includes` puts a candidate in the place of the hidden row, computes the score of every row of every device from
the other rows of its device, and adds up the weights of those that score at least as much. Settings are chosen by the
sums of losses of all rows, the candidate among them.
"""

from fractions import Fraction
from math import erf, inf, log, sqrt
from statistics import NormalDist

import numpy as np

from conformesh import adapt

GRAIN = 2.0**-30  # part of the definition of scores: both round to it, so that last bits do not matter
LOSS_UNIT, LARGEST_LOSS = 256, 12 * 256
LEVELS, CLIP = 64, 4.5


class Rows:
    """Labelled rows of one device: outputs and labels; of regression only residuals matter."""

    def __init__(self, outputs, labels, groups=None):
        self.outputs, self.labels, self.groups = [*outputs], [*labels], None if groups is None else [*groups]

    def with_candidate(self, hidden, output, label, own_groups):
        """Return the rows with the candidate in the place of the hidden one; -1: on top."""
        outputs, labels = [*self.outputs], [*self.labels]
        groups = None if self.groups is None else [*self.groups]
        if hidden < 0:
            outputs, labels = [*outputs, output], [*labels, label]
            return Rows(outputs, labels, None if groups is None else [*groups, own_groups])
        outputs[hidden], labels[hidden] = output, label
        if groups is not None:
            groups[hidden] = own_groups
        return Rows(outputs, labels, groups)


class PriorReference:
    """q(y) proportional to p(y)^(1/T) (N_y / pi0_y + a); the score is 1 - q of the own label."""

    def __init__(self, made):
        self.made = made

    def settings(self, every):
        strengths = (1, 4, 16, 64, 256, inf) if self.made.strength == "auto" else np.atleast_1d(self.made.strength)
        temperatures = (0.5, 1, 1.5) if self.made.temperature == "auto" else np.atleast_1d(self.made.temperature)
        return [(float(a), float(t)) for a in strengths for t in temperatures]

    def own(self, rows, setting):
        """Return q of the label of each row."""
        a, t = setting
        labels, found = np.array(rows.labels), []
        for i, (p, label) in enumerate(zip(rows.outputs, rows.labels, strict=True)):
            others = np.delete(labels, i)
            counts = np.array([(others == y).sum() for y in range(len(p))])
            prior = np.full(len(p), 1 / len(p)) if self.made.prior is None else np.array(self.made.prior)
            q = np.asarray(p) ** (1 / t) * (np.ones(len(p)) if a == inf else (counts + a * prior) / prior)
            found.append(q[label] / q.sum())
        return np.array(found)

    def scores(self, rows, setting):
        return [1 - round(q / GRAIN) * GRAIN for q in self.own(rows, setting)]

    def losses(self, rows, setting, level):
        return [LARGEST_LOSS if q <= np.exp(-12) else round(-log(q) * LOSS_UNIT) for q in self.own(rows, setting)]


class ScaleReference:
    """|e - m| / s, from the residuals of the other rows, clipped at `CLIP` usual scales and rounded."""

    def __init__(self, made):
        self.made = made

    def settings(self, every):
        usual = self.made.usual
        if usual is None:
            octaves = sorted(half_octave(e) for rows in every for e in rows.labels)
            middle = octaves[(len(octaves) + 1) // 2 - 1]
            usual = 2 ** ((middle + 1) / 2)
        added = (2, 10, 50, inf)
        biases = (inf,) if self.made.sequence else added if self.made.bias == "auto" else np.atleast_1d(self.made.bias)
        scales = added if self.made.scale == "auto" else np.atleast_1d(self.made.scale)
        return [(float(b), float(c), usual) for b in biases for c in scales]

    def bias_and_scale(self, others, setting):
        b, c, usual = setting
        n, unit = len(others), CLIP * usual / LEVELS
        whole = [int(np.rint(np.clip(e / unit, -LEVELS, LEVELS))) for e in others]
        m = 0.0 if b == inf or n + b == 0 else sum(whole) / (n + b)
        if c == inf or n + c == 0:
            return m * unit, usual
        around = max(sum(w * w for w in whole) - 2 * m * sum(whole) + n * m * m, 0) * unit**2
        return m * unit, sqrt((around + c * usual**2) / (n + c) + (1e-9 * usual) ** 2)

    def scores(self, rows, setting):
        found = []
        for i, e in enumerate(rows.labels):
            m, s = self.bias_and_scale(rows.labels[:i] + rows.labels[i + 1 :], setting)
            found.append(float(np.float32(abs(e - m) / s)))
        return found

    def losses(self, rows, setting, level):
        found, usual = [], setting[2]
        unit = CLIP * usual / LEVELS
        for i, e in enumerate(rows.labels):
            m, s = self.bias_and_scale(rows.labels[:i] + rows.labels[i + 1 :], setting)
            half = NormalDist().inv_cdf(1 - level) * s
            rounded = np.rint(np.clip(e / unit, -LEVELS, LEVELS)) * unit
            score = 8 * (level * half + max(abs(rounded - m) - half, 0)) / usual
            found.append(int(min(np.rint(score * LOSS_UNIT), LARGEST_LOSS)))
        return found


class EvenReference:
    """The shrunken rank of the score of the base among the other rows of the device."""

    def __init__(self, made):
        self.made, self.base = made, reference(made.base)

    def settings(self, every):
        return self.base.settings(every)

    def scores(self, rows, setting):
        scores, strength = self.base.scores(rows, setting), self.made.strength
        found = []
        for i, s in enumerate(scores):
            below = sum(other < s for j, other in enumerate(scores) if j != i)
            share = min(max(s, 0), 1) if self.made.task == "classification" else erf(s / sqrt(2))
            whole = (below + strength * share) / (len(scores) - 1 + strength)
            found.append(round(whole / GRAIN) * GRAIN)
        return found

    def losses(self, rows, setting, level):
        return self.base.losses(rows, setting, level)


def reference(made):
    return {adapt.Prior: PriorReference, adapt.Scale: ScaleReference, adapt.Even: EvenReference}[type(made)](made)


def half_octave(e):
    """Return h with 2^(h/2) < |e| <= 2^((h+1)/2), roughly: the half octave of an absolute value, at most 2^40."""
    if e == 0:
        return -80
    mantissa, exponent = np.frexp(abs(e))  # in [1/2, 1)
    return int(np.clip(2 * exponent - (mantissa**2 < 0.5) - 1, -80, 79))


def pooled_includes(devices, device, hidden, made, alpha, level, candidate, shares):
    """Whether a candidate (output, label, its groups, the group that is covered) is in the set of a device.

    `devices` are the `Rows` of all devices, `hidden` the place of the row that the device hides, `shares` those of the
    mixture; None: each device is covered by itself, and hides nothing.
    """
    output, label, groups, group = candidate
    is_in = (lambda groups: True) if group is None else (lambda groups: group in groups)
    if not devices[device].labels:
        return True
    every = [
        rows.with_candidate(hidden, output, label, groups) if k == device else rows for k, rows in enumerate(devices)
    ]
    method = reference(made)
    settings = method.settings(every)
    sums = [sum(sum(method.losses(rows, s, level)) for rows in every) for s in settings] if len(settings) > 1 else [0]
    setting = settings[sums.index(min(sums))]
    own = len(devices[device].labels) if hidden < 0 else hidden
    scores = [method.scores(rows, setting) for rows in every]
    value = scores[device][own]
    above = whole = Fraction(0)
    for k, rows in enumerate(every):
        if (shares is None and k != device) or not rows.labels:
            continue
        weight = Fraction(1) if shares is None else Fraction(shares[k]) / len(rows.labels)
        for score, groups in zip(scores[k], rows.groups or [()] * len(rows.labels), strict=True):
            if is_in(groups):
                whole += weight
                above += weight * (score >= value)
    return above > alpha * whole
