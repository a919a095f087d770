"""Compare an answer with the recorded one, field by field."""

import math

# Iterated floats, whose last bits depend on the processor and on the versions of NumPy and SciPy.
ITERATED = {"q-dcp", "h-dcp", "average", "wfcp", "fedcp-qq"}
TOLERANCE = 1e-9
# Fields of `detect` that follow from NumPy's exponentials, which have other last bits on other processors.
ROUNDED = frozenset({"chance", "level"})

# Answers that are meant to differ from the recorded ones: the tag of the calls, what is done instead, and why.
EXCEPTIONS = {
    "unequal_sides": (
        "e-dcp: no device sends more than was recorded",
        "levels that only the other side asked for are no longer searched: the same answers for less",
    ),
    "removed_way": ("not replayed", "sums by gossip, Chebyshev and finite-time consensus are being removed"),
}


def differences(recorded, got, where="", exact=True, rounded=frozenset()):
    """Return one line for each field that differs; the `rounded` fields may differ by round-off."""
    if isinstance(recorded, dict) and isinstance(got, dict):
        found = [f"{where}{key} is missing" for key in recorded if key not in got]
        found += [f"{where}{key} is new: {got[key]!r:.80}" for key in got if key not in recorded]
        for key in recorded:
            if key in got:
                found += differences(recorded[key], got[key], f"{where}{key}.", exact and key not in rounded, rounded)
        return found
    if isinstance(recorded, list) and isinstance(got, list) and len(recorded) == len(got):
        pairs = enumerate(zip(recorded, got, strict=True))
        return [line for i, (one, other) in pairs for line in differences(one, other, f"{where}{i}.", exact, rounded)]
    if recorded == got or (not exact and _close(recorded, got)):
        return []
    return [f"{where.rstrip('.')}: recorded {recorded!r:.90}, got {got!r:.90}"]


def compared(recorded, got, call, exact=True):
    """Return one line for each field that differs and should not, by `EXCEPTIONS`."""
    if not call.get("unequal_sides") or call.get("method", "e-dcp") != "e-dcp":
        return differences(recorded, got, exact=exact, rounded=ROUNDED if call.get("kind") == "detect" else frozenset())
    without = [{key: value for key, value in answer.items() if key != "cost"} for answer in (recorded, got)]
    return differences(*without, exact=exact) + _more_sent(recorded["cost"], got["cost"])


def _more_sent(recorded, got):
    """Return one line for each amount of a cost that is above the recorded one."""
    pairs = [("rounds", [recorded["rounds"]], [got["rounds"]])]
    pairs += [(name, _floats(recorded[name]), _floats(got[name])) for name in ("numbers", "bits")]
    return [
        f"cost.{name} of device {k}: recorded {one}, got more: {other}"
        for name, before, after in pairs
        for k, (one, other) in enumerate(zip(before, after, strict=True))
        if other > one
    ]


def _floats(texts):
    """Return the floats of all devices from how they are recorded."""
    if isinstance(texts, str):
        number, text = texts.split(" times ")
        return [float.fromhex(text)] * int(number)
    return [float.fromhex(text) for text in texts]


def is_exact(call, same_machine):
    """Return whether an answer must be the same to the last bit here."""
    return same_machine or call.get("method", "e-dcp") not in ITERATED


def _close(recorded, got):
    """Return whether two texts of floats are the same but for round-off."""
    if not isinstance(recorded, str) or not isinstance(got, str):
        return False
    ours, theirs = recorded.split(" times "), got.split(" times ")
    if ours[:-1] != theirs[:-1]:
        return False
    try:
        one, other = float.fromhex(ours[-1]), float.fromhex(theirs[-1])
    except ValueError:
        return False
    return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
