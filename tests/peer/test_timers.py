"""When an entry is repeated to one neighbour in asynchronous mode."""

from conformesh.peer.timers import ATTEMPTS, NeighbourTimer


def test_pauses_grow_up_to_the_longest_however_long_a_neighbour_is_down():
    """Without a limit the growth is beyond all floats after 7,447 further attempts: 4 hours, at 2 seconds each."""
    timer, now = NeighbourTimer(first=0.2, longest=2.0), 0.0
    for _ in range(ATTEMPTS + 10_000):
        timer.note_sent([1], now)
        now += timer.pause
    assert timer.pause == 2.0
    timer.note_received(0, now)
    assert timer.pause == 0.2
