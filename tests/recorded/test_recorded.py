"""Every recorded call gives its recorded answer: thresholds to the bit, certificates and ledgers; or its refusal."""

from collections import Counter
from functools import cache

import pytest

from conformesh import METHODS
from tests.recorded.calls import CALLS
from tests.recorded.comparison import EXCEPTIONS, compared, differences, is_exact
from tests.recorded.over_mpi import mpi_answers
from tests.recorded.record import digest_of, machine, read
from tests.recorded.refusals import CHANGED, REFUSALS, missing_words, refusal
from tests.recorded.replay import replay

CHUNKS = 10
SHOWN = 6  # differences of one call that a failure shows
OVER_MPI = [call for call in CALLS if call.get("engine", {}).get("name") == "mpi"]
HERE = [call for call in CALLS if call not in OVER_MPI and not call.get("removed_way")]
recorded = cache(read)


def report(calls, answers):
    """Return what differs, by call."""
    same_machine, found = recorded()["machine"] == machine(), {}
    for call in calls:
        exact = is_exact(call, same_machine)
        if lines := compared(recorded()["answers"][call["id"]], answers(call), call, exact):
            found[call["id"]] = [*lines[:SHOWN], *([f"... {len(lines)} in all"] if lines[SHOWN:] else [])]
    return found


def test_three_hundred_calls_cover_every_method():
    assert len(CALLS) == len({call["id"] for call in CALLS}) == len(recorded()["answers"]) == 300
    assert {call.get("method", "e-dcp") for call in CALLS} == {*METHODS}
    tagged = {tag: sum(call.get(tag, False) for call in CALLS) for tag in EXCEPTIONS}
    assert tagged == {"unequal_sides": 7, "removed_way": 3}
    assert not any(call.get(tag) for call in OVER_MPI for tag in EXCEPTIONS)


def test_answers_belong_to_these_calls():
    assert {call["id"]: digest_of(call) for call in CALLS} == recorded()["calls"]


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_answers_are_as_recorded(chunk):
    assert report(HERE[chunk::CHUNKS], replay) == {}


@pytest.mark.xdist_group("mpi")
def test_answers_over_mpi_are_as_recorded():
    answers = mpi_answers()
    assert report(OVER_MPI, lambda call: answers[call["id"]]) == {}


def test_refusals_are_as_recorded():
    assert {call["id"]: call["reason"] for call in REFUSALS} == recorded()["refusals"]
    messages = {call["id"]: refusal(call) for call in REFUSALS}
    assert [name for name, words in messages.items() if words is None] == []
    reasons = {call["id"]: CHANGED.get(call["id"], (call["reason"],))[0] for call in REFUSALS}
    lacking = {name: missing_words(messages[name], reason) for name, reason in reasons.items()}
    assert {name: (words, messages[name]) for name, words in lacking.items() if words} == {}


def test_comparison_notices_the_last_bit_and_the_last_number():
    answer = {"answers": [{"thresholds": "3 times 0x1.0p0", "scores": 3}], "cost": {"bits": ["0x1.0p3"]}}
    for other in (
        {"answers": [{"thresholds": "3 times 0x1.0000000000001p0", "scores": 3}], "cost": {"bits": ["0x1.0p3"]}},
        {"answers": [{"thresholds": "3 times 0x1.0p0", "scores": 4}], "cost": {"bits": ["0x1.0p3"]}},
        {"answers": [{"thresholds": "3 times 0x1.0p0", "scores": 3}], "cost": {"bits": ["0x1.1p3"]}},
        {"answers": [{"thresholds": "3 times 0x1.0p0", "scores": 3}], "cost": {}},
        {"answers": [], "cost": {"bits": ["0x1.0p3"]}},
    ):
        assert Counter(differences(answer, other)).total() == 1
    rounded = {"answers": [{"thresholds": "3 times 0x1.0000000000001p0", "scores": 3}], "cost": {"bits": ["0x1.0p3"]}}
    assert differences(answer, rounded, exact=False) == []
    assert differences(answer, answer) == []


def test_comparison_allows_round_off_in_chances_of_detect_only():
    answer = {"chance": "0x1.0p-1", "threshold": "0x1.0p0"}
    near = {"chance": "0x1.0000000000001p-1", "threshold": "0x1.0p0"}
    assert compared(answer, near, {"kind": "detect"}) == []
    assert len(compared(answer, near, {})) == 1
    assert len(compared(answer, {**near, "threshold": "0x1.0000000000001p0"}, {"kind": "detect"})) == 1


def test_comparison_allows_unequal_sides_a_lower_cost_only():
    call, answer = (
        {"unequal_sides": True},
        {"answers": [1], "cost": {"rounds": 9, "numbers": "2 times 0x1.0p3", "bits": "2 times 0x1.0p8"}},
    )
    lower = {"answers": [1], "cost": {"rounds": 9, "numbers": ["0x1.0p2", "0x1.0p3"], "bits": "2 times 0x1.0p7"}}
    assert compared(answer, lower, call) == []
    assert len(compared(answer, lower, {})) == 2
    assert len(compared(lower, answer, call)) == 3  # numbers of one device, bits of two
    assert len(compared(answer, {**lower, "answers": [2]}, call)) == 1
