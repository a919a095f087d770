"""What a node without rounds shows before all was heard: not final, and never in place of what is."""

import pytest
from msgspec import to_builtins

from conformesh import Network
from conformesh.mesh.config.device_toml import read_device
from conformesh.mesh.config.local_scores import read_local_scores
from conformesh.mesh.node.calibration_run import make_device
from conformesh.mesh.node.node import Node
from conformesh.mesh.node.status import Phase
from conformesh.peer.journal import MemoryJournal
from tests.mesh.real import drawn_scores, make_mesh


class Pair:
    """Two devices whose frames are carried by hand, and the node of the first."""

    def __init__(self, root):
        folders, (self.expected, _) = make_mesh(
            root / "m", Network.chain(2), scores=drawn_scores(2, low=20), insecure=True, mode="asynchronous"
        )
        configs = [read_device(folder) for folder in folders]
        self.devices = [make_device(config, read_local_scores(config), MemoryJournal()) for config in configs]
        self.node, self.now = Node(configs[0]), 0.0
        for device in self.devices:
            device.start(self.now)

    def carry(self, sender):
        """Hand over what one of them says now, and let the node look."""
        for _, data in self.devices[sender].outbox():
            self.devices[1 - sender].receive(data, sender, self.now)
        self.now += 1.0
        for device in self.devices:
            device.tick(self.now)
        self.node.driver._certify_so_far(self.devices[0])

    def end(self):
        """Let them talk until they have ended."""
        while not all(device.final for device in self.devices):
            for sender in (0, 1):
                self.carry(sender)
        self.node.driver._certify(self.devices[0])

    @property
    def shown(self):
        return to_builtins(self.node.state.status())["certified"]


@pytest.fixture
def pair(tmp_path):
    return Pair(tmp_path)


def test_what_was_not_settled_yet_is_not_final_also_where_it_is_about_everybody(pair):
    """All have said how their scores lie, and not yet which of them lie where the threshold is."""
    pair.node.driver._certify_so_far(pair.devices[0])
    assert (pair.shown["about"], pair.shown["final"]) == ("reported", False)
    pair.carry(1)
    assert (pair.shown["about"], pair.shown["final"]) == ("everybody", False)
    assert pair.shown["threshold"] >= pair.expected
    assert pair.node.state.phase is not Phase.CERTIFIED
    assert not pair.node.files.store.path.exists()
    pair.end()
    assert (pair.shown["threshold"], pair.shown["final"]) == (pair.expected, True)
    assert pair.node.state.phase is Phase.CERTIFIED


def test_a_final_threshold_stays_until_the_next_one(pair):
    pair.end()
    first = pair.shown
    pair.devices[1].recalibrate(pair.now)
    for sender in (1, 0, 1):
        pair.carry(sender)
        assert pair.shown == first
    pair.end()
    assert (pair.shown["run"], pair.shown["final"]) == (2, True)
