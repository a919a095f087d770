"""Slow, obvious versions: each follows its formula to the letter, with no trick that the library uses."""

import itertools
import math
from fractions import Fraction

import numpy as np
from scipy.optimize import brentq, fsolve
from scipy.special import expit


def pooled_threshold(scores, rank):
    """The rank-th smallest of all scores by a plain sort; +inf when there are fewer."""
    pooled = np.sort(np.concatenate([np.asarray(s, float) for s in scores])) if len(scores) else np.array([])
    return pooled[rank - 1] if rank <= len(pooled) else np.inf


def loss_gradient(s, scores, gamma, kappa, mu, s0):
    """Derivative of the smoothed, regularised pinball loss of one device ([Wen2025] Eq. (8))."""
    x = kappa * (s - np.asarray(scores))
    return (1 - gamma) * expit(x).sum() - gamma * expit(-x).sum() + mu * (s - s0)


def smoothed_loss(s, scores, gamma, kappa, mu, s0):
    """The loss itself, for checking the gradient by differences."""

    def g(x):
        return np.logaddexp(0, kappa * x) / kappa

    scores = np.asarray(scores)
    return gamma * g(scores - s).sum() + (1 - gamma) * g(s - scores).sum() + mu / 2 * (s - s0) ** 2


def pooled_minimiser(scores, gamma, kappa, mu, s0):
    """The minimiser of the sum of all devices' losses, by a scalar root finder."""

    def gradient(s):
        return sum(loss_gradient(s, device, gamma, kappa, mu, s0) for device in scores)

    n, k = sum(map(len, scores)), len(scores)
    reach = n / (k * mu) + 1e-9
    return brentq(gradient, s0 - reach, s0 + reach, xtol=1e-14, rtol=1e-15)


def incidence(network):
    """A1, A2 of [Wen2025] Section 2: one row per undirected edge."""
    pairs = [(i, int(j)) for i in range(network.devices) for j in network.neighbours(i) if i < j]
    a1, a2 = np.zeros((len(pairs), network.devices)), np.zeros((len(pairs), network.devices))
    for q, (i, j) in enumerate(pairs):
        a1[q, i] = a2[q, j] = 1
    return a1, a2


def admm_in_matrices(scores, network, gamma, kappa, mu, s0, c, rounds, start=0.0):
    """Algorithm 1 as printed, with A, B, z and lambda; every device's equation solved by bisection and Newton."""
    a1, a2 = incidence(network)
    a = np.vstack([a1, a2])
    e = len(a1)
    b = -np.vstack([np.eye(e), np.eye(e)])
    s, z, dual = np.full(network.devices, start), np.full(e, start), np.zeros(2 * e)
    for _ in range(rounds):
        pull, slope = a.T @ dual + c * a.T @ (b @ z), c * np.diag(a.T @ a)
        for k in range(network.devices):

            def equation(x, k=k, pull=pull, slope=slope):
                return loss_gradient(x, scores[k], gamma, kappa, mu, s0) + pull[k] + slope[k] * x

            wide = (len(scores[k]) + abs(pull[k]) + mu * abs(s0)) / (slope[k] + mu) + 1
            s[k] = brentq(equation, -wide, wide, xtol=1e-14, rtol=1e-15)
        z = -np.linalg.inv(c * b.T @ b) @ b.T @ (c * a @ s + dual)
        dual = dual + c * a @ s + c * b @ z
    return s


def q_dcp_by_fsolve(scores, network, gamma, kappa, mu, s0, rounds):
    """Algorithm 1's loop with SciPy's root finder for every device in every round: the plain way to write it."""
    from conformesh.protocols.bounds.quantile import admm_rate

    smoothness = max(map(len, scores)) * kappa / 4 + mu
    c = admm_rate(network.spectrum, smoothness, mu).c
    s, dual = np.zeros(network.devices), np.zeros(network.devices)
    for _ in range(rounds):
        old = s.copy()
        for k in range(network.devices):
            near, d = sum(old[j] for j in network.neighbours(k)), len(network.neighbours(k))

            def equation(x, k=k, near=near, d=d, old=old):
                local = expit(kappa * (x - scores[k])).sum() - gamma * len(scores[k]) + mu * (x - s0)
                return local + dual[k] + c * d * x - c / 2 * (d * old[k] + near)

            s[k] = fsolve(equation, old[k])[0]
        for k in range(network.devices):
            near, d = sum(s[j] for j in network.neighbours(k)), len(network.neighbours(k))
            dual[k] += c / 2 * (d * s[k] - near)
    return s


def consensus_loop(x, matrix, eta, rounds):
    """Algorithm 2's loop as printed: every device, every j, one after the other."""
    x = [np.array(row, dtype=float) for row in x]
    devices = len(x)
    for _ in range(rounds):
        new = []
        for k in range(devices):
            step = np.zeros_like(x[k])
            for j in range(devices):
                step = step + matrix[k, j] * (x[j] - x[k])
            new.append(x[k] + eta * step)
        x = new
    return np.array(x)


def weight_matrix(network, weights):
    """W as a dense matrix."""
    w = np.zeros((network.devices, network.devices))
    edge = np.broadcast_to(weights.edge, len(network.indices))
    for i in range(network.devices):
        for at in range(network.indptr[i], network.indptr[i + 1]):
            w[i, network.indices[at]] = edge[at]
    return w + np.diag(1 - w.sum(axis=1))


def expected_coverage_exactly(local, sizes):
    """FedCP-QQ's expected coverage for every server rank, in rational arithmetic on polynomials."""

    def times(p, q):
        out = [Fraction(0)] * (len(p) + len(q) - 1)
        for (i, a), (j, b) in itertools.product(enumerate(p), enumerate(q)):
            out[i + j] += a * b
        return out

    def plus(p, q):
        return [a + b for a, b in itertools.zip_longest(p, q, fillvalue=Fraction(0))]

    def power(p, n):
        out = [Fraction(1)]
        for _ in range(n):
            out = times(out, p)
        return out

    below = []
    for rank, n in zip(local, sizes, strict=True):  # P(the rank-th smallest of n uniforms <= u), a polynomial in u
        poly = [Fraction(0)]
        for i in range(rank, n + 1):
            term = times(power([Fraction(0), Fraction(1)], i), power([Fraction(1), Fraction(-1)], n - i))
            poly = plus(poly, [math.comb(n, i) * c for c in term])
        below.append(poly)
    exactly = [[Fraction(1)]]  # exactly i devices at or below u
    for p in below:
        above = plus([Fraction(1)], [-c for c in p])
        exactly = [
            plus(
                times(exactly[i], above) if i < len(exactly) else [Fraction(0)],
                times(exactly[i - 1], p) if i else [Fraction(0)],
            )
            for i in range(len(exactly) + 1)
        ]
    out = []
    fewer = [Fraction(0)]
    for k in range(1, len(sizes) + 1):
        fewer = plus(fewer, exactly[k - 1])
        out.append(sum(c / (i + 1) for i, c in enumerate(fewer)))
    return out


def weighted_rule(values, weights, target, alpha, bound, test, shares):
    """The pooled threshold of weighted scores, one array per device, in fractions (docs/guarantees.md, weights)."""
    held = [len(own) for own in values]
    pi = {"sizes": held, "paper": [n + 1 for n in held], "equal": [1] * len(held), "given": shares}[target]
    v = [Fraction(share, n) if n else Fraction(0) for share, n in zip(pi, held, strict=True)]
    each = zip(v, values, weights, strict=True)
    pairs = sorted((x, v_k * int(w)) for v_k, xs, ws in each for x, w in zip(xs, ws, strict=True))
    missing = sum(share for share, n in zip(pi, held, strict=True) if not n)
    alone = sum(share > 0 for share in pi) == 1
    test = bound if test is None else test
    need = (1 - alpha) * (sum(w for _, w in pairs) + missing * bound)
    need += max(v) * ((1 - alpha) * test + (0 if alone else alpha * bound))
    if not max(v):
        return float("inf")
    reached = Fraction(0)
    for x, w in pairs:
        reached += w
        if w and reached >= need:
            return float(x)
    return float("inf") if need > 0 else float("-inf")


def list_in_bits(items, owner_bits):
    """Scores (key, owner, how often), ascending, as `kernels.items` has them: a text of 0 and 1."""

    def gamma(number):
        digits = f"{number + 1:b}"
        return "0" * (len(digits) - 1) + digits

    def raw(key):
        return f"{key + 2**63:064b}"

    out = gamma(len(items))
    if not items:
        return out
    keys = [key for key, _, _ in items]
    drop = next(d for d in range(63) if d == 62 or any(key >> d & 1 for key in keys))
    out += f"{drop:06b}" + raw(keys[0])
    if len(keys) > 1 and (keys[-1] >> 1) - (keys[0] >> 1) >= 2**61:
        out += f"{63:06b}" + "".join(map(raw, keys[1:]))
    elif len(keys) > 1:
        cut = [key >> drop for key in keys]
        low = max(((cut[-1] - cut[0]) // (len(cut) - 1)).bit_length() - 1, 0)
        out += f"{low:06b}"
        for before, now in itertools.pairwise(cut):
            ones, rest = divmod(now - before, 2**low)
            out += "1" * ones + "0" + (f"{rest:0{low}b}" if low else "")
    out += "".join(f"{owner:0{owner_bits}b}" for _, owner, _ in items)
    several = any(times != 1 for _, _, times in items)
    return out + "01"[several] + "".join(gamma(times - 1) for _, _, times in items if several)


def packet_of_lists(lists, owner_bits):
    """Several lists, each with the largest key held back or None, as bytes; and how many numbers that is."""
    text, numbers = "", 0
    for items, held_back in lists:
        text += list_in_bits(items, owner_bits) + "01"[held_back is not None]
        text += "" if held_back is None else f"{held_back + 2**63:064b}"
        numbers += len(items) * (1 + any(times != 1 for _, _, times in items)) + (held_back is not None)
    text += "0" * (-len(text) % 8)
    return bytes(int(text[i : i + 8], 2) for i in range(0, len(text), 8)), numbers


def largest_of(items, k):
    """The largest scores, (key, owner) -> how often, until they weigh k, and all that equal the last of them."""
    weight, kept = 0, {}
    for key, same in itertools.groupby(sorted(items, reverse=True), key=lambda item: item[0]):
        if weight >= k:
            break
        kept |= {item: items[item] for item in same}
        weight = sum(kept.values())
        assert all(key <= other for other, _ in kept)
    return kept


class FloodedList:
    """What one device knows of the k largest scores of all; its own are key -> how often (`protocols.top_k`)."""

    def __init__(self, k, counts_ties, row, own, likely):
        self.k, self.counts_ties = k, counts_ties
        self.own = {(key, row): times for key, times in own.items()}
        said = largest_of(self.own, min(likely, k))
        rest = [key for key, _ in self.own if (key, row) not in said]
        self.back = max(rest) if rest and sum(said.values()) < k else None
        self.known, self.says_back = {}, False
        self.hear([said], [])
        self.says_back = self.back is not None

    def hear(self, said, backs):
        """Take what neighbours say; what is new and among the k largest is news."""
        better = max((back for back in backs if back is not None), default=None)
        self.says_back = better is not None and (self.back is None or better > self.back)
        self.back = better if self.says_back else self.back
        together = dict(self.known)
        for items in said:
            together = items | together  # what is known stays
        top = largest_of(together, self.k)
        self.news = {item: times for item, times in top.items() if item not in self.known}
        self.known = top

    def last(self):
        """The key at which the largest scores weigh k, None if they are fewer."""
        return min((key for key, _ in self.known), default=None)

    def answered(self):
        return self.back is None or (self.known != {} and self.last() - self.counts_ties >= self.back)

    def say_rest(self):
        """Say what was held back and may matter, or nothing where all is answered."""
        if self.answered():
            self.news = {}
            return
        least = None if not self.known else self.last() + 1 - self.counts_ties
        rest = {
            item: times
            for item, times in self.own.items()
            if (least is None or item[0] >= least) and item[0] <= self.back
        }
        self.back = None
        self.hear([rest], [])


def flooded_lists(neighbours, diameter, devices, owner_bits):
    """What every device says in every round: row -> (bytes, numbers); a device has a `FloodedList` for each list."""
    rounds = []
    for phase in range(2):
        if phase:
            if all(known.answered() for known in devices[0]):
                break
            for known in itertools.chain(*devices):
                known.say_rest()
        for _ in range(diameter):
            said = {
                row: [(known.news, known.back if known.says_back else None) for known in lists]
                for row, lists in enumerate(devices)
                if any(known.news or known.says_back for known in lists)
            }
            rounds.append(
                {
                    row: packet_of_lists(
                        [(sorted((*item, times) for item, times in news.items()), back) for news, back in lists],
                        owner_bits,
                    )
                    for row, lists in said.items()
                }
            )
            for row, lists in enumerate(devices):
                heard = [said[j] for j in neighbours[row] if j in said]
                for i, known in enumerate(lists):
                    known.hear([packet[i][0] for packet in heard], [packet[i][1] for packet in heard])
    return rounds


def distances(network, rows):
    """Return, for each of these rows of a network, the hops to all devices: breadth-first, one level after another."""
    for row in rows.tolist():
        levels = np.full(network.devices, -1)
        frontier, hops = {row}, 0
        while frontier:
            levels[[*frontier]] = hops
            near = {int(k) for one in frontier for k in network.neighbours(one)}
            frontier, hops = {k for k in near if levels[k] < 0}, hops + 1
        yield levels
