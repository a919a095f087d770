"""Faults of real nodes: that they are survived, and how soon `/health` and `mesh status` say so."""

import errno
import signal
import subprocess
import sys
from contextlib import ExitStack

import pytest

from conformesh import Network
from conformesh.mesh.http.client import Client, NodeError
from tests.mesh.disks import unwritable
from tests.mesh.nodes import short_folder
from tests.mesh.real import make_mesh, round_of, wait_for
from tests.mesh.test_serving import after, certified, staying_up

pytest.importorskip("zenoh", reason="a mesh needs Eclipse Zenoh: pip install 'conformesh[mesh]'")
pytest.importorskip("cryptography", reason="a mesh needs certificates: pip install 'conformesh[mesh]'")


def healthy(client):
    """Whether a node says that it is healthy; None where it does not answer."""
    try:
        return client.health()["healthy"]
    except NodeError:
        return None


@pytest.mark.parametrize("code", [errno.EROFS, errno.ENOSPC], ids=errno.errorcode.get)
def test_a_restart_on_a_disk_that_takes_nothing_serves_the_last_threshold(code):
    """It is unhealthy with the reason, accepts no request, and goes on by itself when the disk can be written."""
    with short_folder() as root:
        folders, expected = make_mesh(root / "m", Network.chain(2), insecure=True, patience=3.0)
        clients = [Client(folder) for folder in folders]
        with staying_up(folders[0]), staying_up(folders[1]):
            run, _ = after(clients, 0)
        with ExitStack() as stack:
            with unwritable(folders[0], code):
                stack.enter_context(staying_up(folders[0]))
                wait_for(lambda: healthy(clients[0]) is False)
                assert clients[0].threshold() == expected[0]
                assert clients[0].health()["reasons"][0].startswith("disk: ")
                with pytest.raises(NodeError, match="the request cannot be stored") as refused:
                    clients[0].recalibrate()
                assert refused.value.status == 503
            stack.enter_context(staying_up(folders[1]))
            assert after(clients, run)[1] == expected
            wait_for(lambda: healthy(clients[0]))


def serve(stack, folder, *words):
    """A node in a process of its own, which is killed at the end."""
    command = [sys.executable, "-m", "conformesh", "node", str(folder), *words]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    stack.callback(process.wait)
    stack.callback(process.send_signal, signal.SIGCONT)
    stack.callback(process.kill)
    return process


def kill(process):
    process.kill()
    process.wait()


def test_a_request_that_was_acknowledged_in_asynchronous_mode_survives_a_kill():
    """The run begins when the last result has stood for 2 s; the node is killed before that."""
    with short_folder() as root, ExitStack() as stack:
        folders, expected = make_mesh(root / "m", Network.chain(2), insecure=True, mode="anytime")
        clients = [Client(folder) for folder in folders]
        nodes = [serve(stack, folder) for folder in folders]
        run, _ = after(clients, 0)
        clients[0].recalibrate()
        run, _ = after(clients, run)  # a result that is young: the next run has to wait
        clients[0].recalibrate()
        kill(nodes[0])
        assert certified(clients[1])[0] == run
        serve(stack, folders[0])
        assert after(clients, run)[1] == expected


@pytest.mark.slow
def test_a_request_that_was_acknowledged_during_a_run_survives_a_kill():
    """In rounds: the neighbour is stopped within the run, so that the request waits for the end of it."""
    with short_folder() as root, ExitStack() as stack:
        options = {"rounds": 3000}
        folders, expected = make_mesh(root / "m", Network.chain(2), "q-dcp", insecure=True, options=options)
        clients = [Client(folder) for folder in folders]
        nodes = [serve(stack, folder) for folder in folders]
        wait_for(lambda: round_of(folders[0]) > 20)
        nodes[1].send_signal(signal.SIGSTOP)
        assert clients[0].recalibrate().startswith("waiting")
        kill(nodes[0])
        nodes[1].send_signal(signal.SIGCONT)
        serve(stack, folders[0])
        run, _ = after(clients, 0)
        assert run == 1  # the journal was resumed
        assert after(clients, run)[1] == expected
