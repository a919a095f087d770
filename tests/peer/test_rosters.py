"""What a device does about a neighbour under another roster: it hands over, asks, or refuses, and never goes back."""

import pytest

from conformesh.peer.frames import DATA, HELLO, ROSTER, WANT, Frame, FrameError, pack_words, unpack_words
from conformesh.peer.json_bodies import Hello
from conformesh.peer.rosters import MOST_ROSTERS, Rosters, roster_number_in, roster_words

MINE = Frame(HELLO, 0, 3, 0, 0, b"{}")


def accept(body):
    """Rosters here are their numbers as text; 7 is refused."""
    if body == b"7" or not body.isdigit():
        raise ValueError("no such roster")
    return int(body)


def under(number, **more):
    return Rosters(number, str(number).encode(), accept, **more)


def hello(number):
    return Frame(HELLO, 0, 9, 0, WANT, Hello({"roster": roster_words(number, "ab" * 8)}, 1, frozenset()).pack())


def test_a_neighbour_that_is_behind_gets_the_document():
    mine = under(3)
    assert mine.replies_to(hello(2), 1, 0.0, MINE) == [Frame(ROSTER, 0, 3, 3, 0, b"3")]
    assert Rosters(3).replies_to(hello(2), 1, 0.0, MINE) == []  # there is nothing to give


def test_a_neighbour_that_is_ahead_is_shown_that_one_is_behind():
    assert under(3).replies_to(hello(4), 1, 0.0, MINE) == [MINE]


def test_the_same_roster_is_for_somebody_else_to_take():
    mine = under(3)
    assert mine.replies_to(hello(3), 1, 0.0, MINE) is None
    assert mine.replies_to(Frame(DATA, 0, 1), 1, 0.0, MINE) is None
    assert mine.replies_to(Frame(HELLO, 0, 1, 0, 0, b'{"agreement": {}}'), 1, 0.0, MINE) is None


def test_a_newer_document_is_acknowledged_and_handed_on_until_all_have_it():
    mine = under(3)
    assert mine.hand_on(3, [0, 1, 2]) == []
    assert mine.replies_to(Frame(ROSTER, 0, 9, 5, 0, b"5"), 1, 10.0, MINE) == [Frame(ROSTER, 0, 3, 5)]
    assert (mine.moving, mine.latest, mine.number) == (True, 5, 3)
    assert mine.hand_on(3, [0, 1, 2]) == [(j, Frame(ROSTER, 0, 3, 5, 0, b"5")) for j in (0, 2)]  # 1 has it
    assert mine.replies_to(Frame(DATA, 0, 1), 1, 10.0, MINE) == []  # nothing is said under the old one any more
    assert mine.replies_to(hello(3), 2, 10.1, MINE) == [Frame(ROSTER, 0, 3, 5, 0, b"5")]
    assert mine.replies_to(Frame(ROSTER, 0, 0, 4), 0, 10.1, MINE) == []  # it has another one
    assert not mine.handed([0, 1, 2], 10.2, 2.0)
    assert mine.replies_to(Frame(ROSTER, 0, 0, 5), 0, 10.2, MINE) == []
    assert mine.replies_to(hello(5), 2, 10.2, MINE) == []
    assert mine.handed([0, 1, 2], 10.2, 2.0)
    assert mine.hand_on(3, [0, 1, 2]) == []


def test_who_does_not_answer_is_not_waited_for_for_ever():
    mine = under(3)
    mine.offer(b"4", 10.0)
    assert not mine.handed([0], 11.9, 2.0)
    assert mine.handed([0], 12.0, 2.0)


def test_a_still_newer_document_begins_anew():
    mine = under(3)
    mine.offer(b"4", 10.0)
    mine.replies_to(Frame(ROSTER, 0, 0, 4), 0, 10.0, MINE)
    mine.offer(b"6", 11.0)
    assert [to for to, _ in mine.hand_on(3, [0])] == [0]
    assert not mine.offer(b"6", 11.5)
    assert mine.latest == 6


def test_a_refused_document_changes_nothing():
    mine = under(3)
    with pytest.raises(FrameError, match="a roster that is refused: no such roster"):
        mine.replies_to(Frame(ROSTER, 0, 9, 7, 0, b"7"), 1, 0.0, MINE)
    assert not mine.moving
    with pytest.raises(FrameError, match="started without rosters"):
        Rosters().offer(b"4", 0.0)


def test_a_floor_only_rises_and_never_beyond_the_roster():
    told = []
    mine = under(3, keep_floor=told.append)
    for floor in (2, 1, 4, 9):  # of these the first alone counts
        mine.raise_floor(floor)
    assert (mine.floor, told) == (2, [2])
    mine.raise_floor(3)
    assert (mine.floor, told) == (3, [2, 3])


def test_a_floor_in_a_greeting_is_not_believed():
    """Else one member could silence the check that keeps a part under an old roster from a second result."""
    mine = under(3, earlier=[(1, "abc")])
    words = unpack_words(hello(3).body) | {"floor": 3}
    assert mine.replies_to(hello(3)._replace(body=pack_words(words)), 1, 0.0, MINE) is None
    assert (mine.floor, mine.lacks("a") != "") == (0, True)


@pytest.mark.parametrize(
    "words", [None, 3, "", "3", "3, xyz", "-1, ab", f"{MOST_ROSTERS}, ab", "3, " + "a" * 17, "03, ab\n"]
)
def test_what_is_no_roster_has_no_number(words):
    assert roster_number_in(words) is None


def test_enough_of_every_earlier_roster_is_half_of_it():
    mine = Rosters(5, earlier=[(2, "abcd"), (3, "abc"), (4, "b")], floor=3)
    assert mine.lacks("ab") == ""  # the second is dead
    assert "of the 3 devices of roster 3 only {b} are in the run, and 2 are needed" in mine.lacks("b")
    assert "roster 4 only {}" in mine.lacks("ac")
