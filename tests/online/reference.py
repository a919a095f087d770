"""Slow, obvious versions of the single-stream learners, one score at a time, from papers and published conventions.

`aci`, `pid`: aangelopoulos/conformal-time-series, one step ahead and without burn-in for ACI. `dtaci`: isgibbs/DtACI.
`sf_ogd`: salesforce/online_conformal, without calibration. `decaying`: aangelopoulos/online-conformal-decaying.
"""

import math

import numpy as np


def tracker(scores, alpha, step, start=0.0):
    q, thresholds = start, []
    for s in scores:
        thresholds.append(q)
        q += step * ((s > q) - alpha)
    return np.array(thresholds)


def decaying(scores, alpha, step, decay, start=0.0):
    q, thresholds = start, []
    for t, s in enumerate(scores, 1):
        thresholds.append(q)
        q += step / t**decay * ((s > q) - alpha)
    return np.array(thresholds)


def aci(scores, alpha, step, window):
    level, thresholds = alpha, []
    for t, s in enumerate(scores):
        past = scores[max(0, t - window) : t]
        if level <= 1 / (len(past) + 1):
            q = math.inf
        else:
            q = float(np.quantile(past, 1 - min(max(level, 0), 1), method="higher"))
        thresholds.append(q)
        level -= step * ((s > q) - alpha)
    return np.array(thresholds)


def pid(scores, alpha, step, gain, saturation, window):
    tracked, errors, q, thresholds = 0.0, [], 0.0, []
    for t, s in enumerate(scores):
        thresholds.append(q)
        before = scores[max(0, t - window) : t]
        size = step * (max(before) - min(before)) if t else step
        excess = sum(errors) - t * alpha  # of those before this example
        errors.append(s > q)
        tracked += size * (errors[-1] - alpha)
        angle = excess * math.log(t + 1) / (saturation * (t + 1))
        q = tracked + (math.copysign(math.inf, angle) if abs(angle) >= math.pi / 2 else gain * math.tan(angle))
    return np.array(thresholds)


def dtaci(scores, alpha, gammas, interval):
    k = len(gammas)
    alphas, weights, past, thresholds = [alpha] * k, [1 / k] * k, [], []
    sigma = 1 / (2 * interval)
    squares = ((1 - alpha) ** 2 * alpha**3 + alpha**2 * (1 - alpha) ** 3) / 3  # of the loss of a uniform rank
    rate = math.sqrt((math.log(2 * k * interval) + 1) / (interval * squares))
    for s in scores:
        mean = sum(w * a for w, a in zip(weights, alphas, strict=True))
        ordered, place = sorted(past, reverse=True), math.ceil(mean * len(past))  # so many are at least the threshold
        inside = ordered[place - 1] if 0 < place <= len(past) else -math.inf
        thresholds.append(0.0 if not past else math.inf if mean <= 0 else inside)
        if len(past) > math.floor(1 / alpha):
            beta = float(np.mean(np.array(past) >= s))
            losses = [max(alpha * (beta - a), (1 - alpha) * (a - beta)) for a in alphas]
            raw = [w * math.exp(-rate * loss) for w, loss in zip(weights, losses, strict=True)]
            weights = [(1 - sigma) * w / sum(raw) + sigma / k for w in raw]
            alphas = [a + g * (alpha - (a > beta)) for a, g in zip(alphas, gammas, strict=True)]
        past.append(s)
    return np.array(thresholds)


def sf_ogd(scores, alpha, scale):
    q, squares, thresholds = 0.0, 0.0, []
    for s in scores:
        thresholds.append(q)
        gradient = -(1 - alpha) * (s > q) + alpha * (s < q)
        squares += gradient**2
        if squares:
            q = max(0.0, q - scale / math.sqrt(3 * squares) * gradient)
    return np.array(thresholds)


def mixed(streams, matrices, alpha, step):
    """Levels that are mixed by any matrices, one device and one step at a time."""
    devices, steps = streams.shape
    q, thresholds = [0.0] * devices, np.zeros(streams.shape)
    for t in range(steps):
        thresholds[:, t] = q
        moved = [q[k] + step * ((streams[k, t] > q[k]) - alpha) for k in range(devices)]
        q = [sum(matrices[t][k][j] * moved[j] for j in range(devices)) for k in range(devices)]
    return thresholds
