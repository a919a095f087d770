"""Sockets of links are told what Zenoh does not let one say."""

import os
import socket
import struct
import sys
import time
from contextlib import ExitStack, suppress

import pytest

from conformesh.mesh import sockets
from conformesh.mesh.sockets import LONGEST_RESEND, SOCKET_LOOK_INTERVAL, TCP_RTO_MAX_MS, LinkSockets

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="where a process finds its sockets is Linux's")


def make_linger(one, seconds=10):
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, seconds))


def lingers(one):
    return struct.unpack("ii", one.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8))[0] == 1


@pytest.fixture
def link():
    """A function that makes both ends of a connection, which linger, and the port that one of them listens at."""
    with ExitStack() as stack:

        def make():
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            near = stack.enter_context(socket.create_connection(listener.getsockname()))
            far = stack.enter_context(listener.accept()[0])
            make_linger(near)
            make_linger(far)
            return near, far, listener.getsockname()[1]

        yield make


def test_links_do_not_linger_at_either_end_and_others_do_as_they_like(link):
    other, _, _ = link()
    near, far, port = link()
    LinkSockets(port, []).look(0.0)
    assert [lingers(one) for one in (near, far, other)] == [True, False, True]
    LinkSockets(1, [port]).look(0.0)
    assert [lingers(one) for one in (near, far, other)] == [False, False, True]


def test_a_socket_is_told_once_it_is_connected(link):
    *_, port = link()
    found = LinkSockets(1, [port])
    with socket.socket() as one:
        make_linger(one)
        found.look(0.0)
        assert lingers(one)
        one.connect(("127.0.0.1", port))
        found.look(SOCKET_LOOK_INTERVAL)
        assert not lingers(one)


def test_a_new_link_under_an_old_handle_is_told(link):
    first, _, port = link()
    found = LinkSockets(1, [port])
    found.look(0.0)
    with socket.create_connection(("127.0.0.1", port)) as second:
        make_linger(second)
        os.dup2(second.fileno(), first.fileno())
        assert lingers(first)
        found.look(SOCKET_LOOK_INTERVAL)
        assert not lingers(first)


def test_a_link_is_told_once_and_not_sooner_than_it_is_time(link, monkeypatch):
    told = []
    monkeypatch.setattr(sockets, "_tell", lambda one: told.append(one.getsockname()))
    near, _, port = link()
    found = LinkSockets(1, [port])
    found.look(0.0)
    found.look(SOCKET_LOOK_INTERVAL)
    assert told == [near.getsockname()]
    with socket.create_connection(("127.0.0.1", port)) as late:
        found.look(1.9 * SOCKET_LOOK_INTERVAL)
        assert late.getsockname() not in told
        found.look(2.0 * SOCKET_LOOK_INTERVAL)
        assert late.getsockname() in told


def test_a_lost_packet_is_soon_repeated_where_the_system_can(link):
    near, _, port = link()
    try:
        before = near.getsockopt(socket.IPPROTO_TCP, TCP_RTO_MAX_MS)
    except OSError:
        pytest.skip("a limit to the waits of TCP came with Linux 6.15")
    LinkSockets(1, [port]).look(0.0)
    assert near.getsockopt(socket.IPPROTO_TCP, TCP_RTO_MAX_MS) == LONGEST_RESEND < before


def test_closing_a_link_does_not_wait_for_who_takes_nothing(link):
    took = []
    for told in (False, True):
        near, _, port = link()
        make_linger(near, seconds=1)
        near.setblocking(False)
        with suppress(BlockingIOError):
            while True:  # until nobody takes any more
                near.send(bytes(100_000))
        if told:
            LinkSockets(1, [port]).look(0.0)
        began = time.monotonic()
        near.close()
        took.append(time.monotonic() - began)
    assert took[1] < 0.5 < took[0]
