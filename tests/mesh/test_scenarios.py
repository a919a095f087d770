"""Real nodes on hosts of their own, over TLS: loss, delay, partitions, crashes. Long: run by `make test-all`.

However bad the network, one number of a run has one threshold, and a threshold of all is the simulator's. How soon
there is one depends on the mode: in rounds everybody waits for everybody's slowest link, in every round.
"""

import itertools
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from conformesh import Network
from tests.mesh.hosts import Hosts, why_not
from tests.mesh.nodes import short_folder

pytest.importorskip("zenoh", reason="a mesh needs Eclipse Zenoh: pip install 'conformesh[mesh]'")
pytest.importorskip("cryptography", reason="a mesh needs certificates: pip install 'conformesh[mesh]'")
if why_not():
    pytest.skip(why_not(), allow_module_level=True)
from conformesh.mesh.http.client import Client
from tests.mesh.hosted import Hosted

pytestmark = [pytest.mark.slow, pytest.mark.meshes]
BAD = {"delay": 0.05, "loss": 0.3}
TEN = {"cycle": Network.cycle(10), "torus": Network.torus(5, 2), "complete": Network.complete(10)}
# Seconds from the start of ten nodes to the last threshold on a bad network; in rounds there is no promise, only an end
WITHIN = {"rounds": 240.0, "asynchronous": 20.0}
HEALED = 10.0  # seconds from the end of a partition to a threshold of all
PATIENCE = 6.0
TALKER = Path(__file__).with_name("talker.py")
START = 30.0  # seconds for nodes to start and agree on a network without faults


@pytest.fixture(params=WITHIN)
def mode(request):
    """How devices talk."""
    return request.param


@pytest.fixture
def mesh():
    """A function that makes hosts and a mesh on them."""
    with short_folder() as root:

        def make(network, mode, **options):
            return Hosted(root, network, Hosts(network.devices), mode=mode, **options)

        yield make


@pytest.mark.parametrize("graph", TEN)
def test_ten_hosts_on_a_bad_network_end_with_the_simulators_threshold(mesh, graph, mode):
    with mesh(TEN[graph], mode, patience=WITHIN[mode]) as hosted:
        hosted.hosts.set(**BAD, seed=1)
        expected, began = hosted.expected(), hosted.start()  # a simulation would take time from ten that start
        hosted.wait(lambda: hosted.agreed(began, range(10)), WITHIN[mode], "ten devices agree")
        print("{:.1f} s until all can be asked, {:.1f} s from then on".format(*hosted.times(began)))
        assert {one.threshold for one in hosted.since(began).values()} == {expected}
        assert not hosted.twice()


@pytest.mark.parametrize("patiences", [3, 12])
def test_halves_never_have_two_thresholds_and_all_have_one_soon_after(mesh, mode, patiences):
    """Four devices are cut into halves for longer than their patience while both halves are asked for a new run."""
    with four(mesh, mode) as hosted:
        cut = hosted.now()
        hosted.hosts.split({0, 1}, {2, 3})
        for k in (0, 2):
            Client(hosted.folders[k]).recalibrate()
        time.sleep(patiences * PATIENCE)
        assert not [one for one in hosted.since(cut).values() if len(one.roster) == 4]
        healed = hosted.now()
        hosted.hosts.split()
        took = hosted.wait(lambda: hosted.agreed(healed, range(4)), HEALED, "four devices agree once all is healed")
        print(f"{took:.1f} s from healing to one threshold")
        assert not hosted.twice()


def test_a_cut_link_leaves_the_others_alone(mesh):
    """Zenoh gives a link up after ten seconds; the third device's are cut for longer, and come back when healed."""
    with mesh(Network.complete(3), "rounds") as hosted:
        talkers = [talker(hosted, k, seconds=26) for k in range(3)]
        time.sleep(4)
        cut = time.monotonic()
        hosted.hosts.split({0, 1}, {2})
        time.sleep(14)
        healed = time.monotonic()
        hosted.hosts.split()
        heard = [[line.split() for line in process.communicate()[0].splitlines()] for process in talkers]
    for k, other in ((0, 1), (1, 0)):
        moments = [float(moment) for row, moment in heard[k] if int(row) == other and cut - 1 < float(moment)]
        assert max(b - a for a, b in itertools.pairwise(moments)) < 3.0
    for k, other in ((0, 2), (2, 0), (1, 2), (2, 1)):
        moments = [float(moment) for row, moment in heard[k] if int(row) == other]
        assert not [moment for moment in moments if cut + 1 < moment < healed]
        assert min(moment for moment in moments if moment > healed) < healed + 5.0


def talker(hosted, k, seconds):
    """Start a device that talks without end, and says when it heard whom."""
    command = [sys.executable, str(TALKER), str(hosted.folders[k]), str(seconds)]
    return hosted.hosts.start(k, command, stdout=subprocess.PIPE, text=True)


def test_a_killed_device_is_back_within_one_run(mesh, mode):
    """In rounds three go on without it, and the next run has all four; without rounds the run of the three gets it."""
    with four(mesh, mode) as hosted:
        killed = hosted.now()
        hosted.kill(3)
        Client(hosted.folders[0]).recalibrate()
        if mode == "rounds":
            now_agree(hosted, killed, 3)
        else:
            hosted.wait(lambda: all(hosted.gathered(k) == (2, 3) for k in range(3)), START, "three have heard three")
        back = hosted.start(3)
        if mode == "rounds":
            hosted.wait(lambda: hosted.hears(0, 3), START, "the first device hears the fourth")
            Client(hosted.folders[0]).recalibrate()
        now_agree(hosted, back, 4)
        assert {one.run for one in hosted.since(back).values()} == {3 if mode == "rounds" else 2}
        assert {one.threshold for one in hosted.since(back).values()} == {hosted.expected()}
        assert not hosted.twice()


def now_agree(hosted, moment, devices):
    """Wait for a result of so many devices since a moment."""
    hosted.wait(lambda: hosted.agreed(moment, range(devices)), START, f"{devices} devices agree")


@contextmanager
def four(mesh, mode):
    """Have four devices that all know each other, go on without who is lost, and have one threshold."""
    with mesh(Network.complete(4), mode, on_lost="continue", patience=PATIENCE) as hosted:
        now_agree(hosted, hosted.start(), 4)
        yield hosted
