"""Calls that must be refused because no proof exists or none can exist, each with keywords of the reason.

A keyword is a word that any message about this reason contains, whatever its sentence; ``|`` separates synonyms.
Calls are described as in `calls`.
"""

from tests.recorded.calls import Book
from tests.recorded.replay import replay

ERRORS = (ValueError, TypeError)
CHANGED = {  # reasons that have other keywords than those recorded, and why
    "refused-38": (["alpha", "11/10"], "two sides share one alpha by lower_share, so alpha itself is out of range"),
}


def refusal(call):
    """Return the message with which a call is refused, None if it is not."""
    try:
        replay(call)
    except ERRORS as error:
        return str(error)
    return None


def missing_words(message, reason):
    """Return the keywords that a message lacks."""
    lower = message.lower()
    return [word for word in reason if not any(synonym in lower for synonym in word.split("|"))]


def recorded_refusals():
    """Return the calls, each with its `reason`."""
    book = Book()
    data = {"form": "list", "values": "unit", "sizes": {"from": 8, "to": 20}}
    labels, lists = {"form": "labels", "names": ["a", "b"]}, {"form": "lists", "names": ["a", "b"]}
    weights = {"each": "eighths", "bound": 2.0}
    centres = {"points": [0.2, 0.8], "bandwidth": 0.5}
    grid = {"form": "grid", "lambdas": [0.0, 0.5, 1.0], "ends": True}
    pac, pac_words = {"pac_confidence": 0.9}, ["pac_confidence"]
    mixture = "target|mixture"
    book.each(
        "refused",
        [
            {**pac, "groups": labels, "alpha": [0.2], "reason": [*pac_words, "group"]},
            {**pac, "groups": lists, "alpha": [0.2], "group_rule": "max", "reason": [*pac_words, "group"]},
            {**pac, "weights": weights, "reason": [*pac_words, "weight"]},
            {**pac, "weights": weights, "alpha": [0.2], "reason": pac_words},
            {**pac, "weights": {"classes": {"0": 1.0, "1": 2.0}}, "alpha": [0.2], "reason": pac_words},
            {**pac, "centres": centres, "reason": pac_words},
            {**pac, "kind": "control", "losses": grid, "reason": pac_words},
            {**pac, "kind": "p_values", "tests": {"number": 3}, "reason": pac_words},
            {**pac, "method": "r-dcp", "reason": pac_words},
            {**pac, "method": "fedcp-qq", "reason": ["fedcp-qq"]},
            {"groups": lists, "group_rule": "seq", "weights": weights, "alpha": [0.2], "reason": ["weight"]},
            {"groups": lists, "group_rule": "regression", "weights": weights, "alpha": [0.2], "reason": ["weight"]},
            {"groups": lists, "group_rule": "seq", "centres": centres, "reason": ["group"]},
            {"groups": lists, "group_rule": "regression", "centres": centres, "reason": ["group"]},
            {"groups": lists, "group_rule": "seq", "kind": "control", "losses": grid, "reason": ["group"]},
            {"groups": lists, "group_rule": "regression", "kind": "control", "losses": grid, "reason": ["group"]},
            {"groups": lists, "group_rule": "regression", "mixture": "equal", "alpha": [0.2],
             "reason": ["regression", mixture]},
            {"groups": lists, "group_rule": "seq", "method": "h-dcp", "alpha": [0.2], "reason": ["h-dcp", "e-dcp"]},
            {"weights": weights, "method": "r-dcp", "reason": ["weight"]},
            {"weights": weights, "method": "h-dcp", "reason": ["h-dcp", "weight"]},
            {"weights": weights, "method": "q-dcp", "reason": ["q-dcp", "weight"]},
            {"weights": weights, "kind": "detect", "fdr": 0.2, "tests": {"number": 3}, "rng": 1, "reason": ["weight"]},
            {"weights": {**weights, "declared": 0.5}, "reason": ["weight", "0.5"]},
            {"weights": weights, "rank_rule": "ghost", "reason": ["ghost", "weight"]},
            {"rank_rule": "ghost", "reason": ["ghost"]},
            {"rank_rule": "ghost", "method": "r-dcp", "reason": ["ghost"]},
            {"mixture": "equal", "method": "cp", "reason": ["cp", mixture]},
            {"mixture": "equal", "method": "average", "reason": ["average", mixture]},
            {"mixture": "equal", "method": "q-dcp", "options": {"rounds": 20}, "reason": ["q-dcp", "weight"]},
            {"mixture": "equal", "method": "p-dcp", "reason": ["p-dcp", mixture]},
            {"method": "p-dcp", "topology": "chain", "devices": 2, "reason": ["p-dcp", "devices"]},
            {"method": "r-dcp", "options": {"byzantine": 8}, "devices": 8, "reason": ["byzantine"]},
            {"faults": {"loss": 0.2}, "reason": ["e-dcp", "loss"]},
            {"faults": {"byzantine": [1], "attack": "all-low"}, "method": "h-dcp", "reason": ["h-dcp", "byzantine"]},
            {"kind": "control", "losses": grid, "method": "h-dcp", "reason": ["h-dcp", "loss"]},
            {"kind": "control", "losses": {**grid, "rises": True}, "reason": ["rise|increas"]},
            {"kind": "control", "losses": grid, "alpha": 1.5, "reason": ["risk", "1.5"]},
            {"sides": True, "alpha": {"lower": 0.5, "upper": 0.6}, "reason": ["side"]},
            {"kind": "detect", "fdr": 0.2, "tests": {"number": 3}, "rng": 1, "draws": 9000, "reason": ["9000|9,000"]},
            {"alpha": 0.001, "strict": True, "reason": ["+inf"]},
            {"alpha": 1.0, "reason": ["alpha"]},
        ],
        alpha=0.2,
        data=data,
    )  # fmt: skip
    for call in book.calls:
        if call["kind"] in ("p_values", "detect"):
            del call["alpha"]
    return book.calls


REFUSALS = recorded_refusals()
