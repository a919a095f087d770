"""Private devices as nodes that stay up and as processes that are killed, over real links."""

import os
import subprocess
import sys
import time
from contextlib import ExitStack
from fractions import Fraction

import numpy as np
import pytest

pytest.importorskip("zenoh", reason="a mesh needs Eclipse Zenoh: pip install 'conformesh[mesh]'")
pytest.importorskip("cryptography", reason="a mesh needs certificates: pip install 'conformesh[mesh]'")

from conformesh import Network
from conformesh.files.atomic_writes import FAILPOINT
from conformesh.mesh.config.device_toml import read_device
from conformesh.mesh.config.epochs import declare_epoch
from conformesh.mesh.http.client import Client, NodeError
from conformesh.privacy.account import ACCOUNT_FILE, read_account
from tests.mesh.nodes import short_folder, threshold_in
from tests.mesh.real import finish, long_ago, make_mesh, wait_for
from tests.mesh.test_serving import after, staying_up

ALPHA = Fraction(1, 10)
OPTIONS = {"epsilon": 4.0, "cells": 8, "grid": "logit"}
RUNNING_ON = 3.0  # seconds in which a run would have begun: files are looked at once a second, a result stands for 2 s


def with_epochs(folder, rows):
    """Replace a device's scores, of several epochs, by a file that seems old."""
    draft = folder / "scores.new"
    draft.write_text("score,epoch\n" + "".join(f"{score!r},{epoch}\n" for score, epoch in rows))
    long_ago(draft)
    draft.replace(folder / "scores.csv")


def released(folders, epoch):
    """How often an epoch was released, by every account, and the one threshold that the releases answer."""
    records = [read_account(folder / ACCOUNT_FILE).record(epoch) for folder in folders]
    (threshold,) = {record.release.answer(ALPHA).threshold for record in records}
    return [record.releases for record in records], threshold


def test_nodes_calibrate_by_epochs_and_nothing_else_starts_a_run():
    rng = np.random.default_rng(3)
    scores = [rng.random(100) for _ in range(4)]
    with short_folder() as root:
        folders, _ = make_mesh(root / "m", Network.cycle(4), "p-dcp", scores=scores, options=OPTIONS, patience=5.0)
        clients = [Client(folder) for folder in folders]
        with ExitStack() as stack:
            nodes = [stack.enter_context(staying_up(folder)) for folder in folders]
            run, found = after(clients, 0)
            assert released(folders, 1) == ([1] * 4, found[0])
            old = (folders[1] / ACCOUNT_FILE).read_bytes()

            # An epoch is released once: the operator is told so, and nothing begins.
            with pytest.raises(NodeError, match="no new run: epoch 1 was released 1 time") as refused:
                clients[0].recalibrate()
            assert refused.value.status == 409

            # Other scores, and a file that is none, start nothing; only the owner sees that something is wrong.
            for folder in folders[2:]:
                own = rng.random(150)
                with_epochs(folder, [*((float(x), 1) for x in own[:50]), *((float(x), 2) for x in own[50:])])
            with_epochs(folders[0], [(float(x), 2) for x in rng.random(100)])
            (folders[1] / "scores.csv").write_bytes(b"no scores\n")
            long_ago(folders[1] / "scores.csv")
            wait_for(lambda: "scores" in clients[1].status()["troubles"])
            wait_for(lambda: all(len(nodes[k].files.scores.known) == n for k, n in enumerate((100, 100, 150, 150))))
            time.sleep(RUNNING_ON)  # nothing happens, which no event announces
            assert [client.status()["run"] for client in clients] == [run] * 4
            mesh = {row["name"]: row["health"] for row in clients[0].mesh()["devices"]}
            assert mesh == dict.fromkeys(mesh, "healthy")
            assert not clients[1].health()["healthy"]

            # A closed epoch does.
            for folder in folders:
                declare_epoch(read_device(folder), 2)
            run, found = after(clients, run)
            assert released(folders, 2) == ([1] * 4, found[0])
            assert (
                200 < read_account(folders[0] / ACCOUNT_FILE).record(2).release.totals[0] < 400
            )  # 300, with epsilon 0.4

        # After a restart nobody asks for a run that would be refused, and all is well.
        with ExitStack() as stack:
            nodes = [stack.enter_context(staying_up(folder)) for folder in folders]
            wait_for(lambda: all(node.driver.device is not None and node.driver.device.idle for node in nodes))
            wait_for(lambda: all(client_is_healthy(client) for client in (clients[0], *clients[2:])))
            assert [client.threshold() for client in clients] == found
            assert released(folders, 2)[0] == [1] * 4

        # A rolled-back device asks, is refused by the others, and knows again.
        (folders[1] / ACCOUNT_FILE).write_bytes(old)
        with ExitStack() as stack:
            nodes = [stack.enter_context(staying_up(folder)) for folder in folders]
            wait_for(lambda: read_account(folders[1] / ACCOUNT_FILE).releases(2) == 1, seconds=90)
            wait_for(lambda: nodes[1].driver.device.idle)
            assert [read_account(folder / ACCOUNT_FILE).releases(2) for folder in folders] == [1] * 4


def client_is_healthy(client):
    try:
        return client.health()["healthy"]
    except NodeError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("point", ["privacy.json/begin:1", "privacy.json/done:1", "privacy.json/begin:2"])
def test_a_process_that_is_killed_around_its_reveal(point):
    """Before its charge, after it, and after the reveal: certified by the survivors or refused in words."""
    rng = np.random.default_rng(3)
    with short_folder() as root:
        folders, _ = make_mesh(
            root / "m",
            Network.complete(5),
            "p-dcp",
            scores=[rng.random(80) for _ in range(5)],
            options={**OPTIONS, "releases": 2},
            on_lost="continue",
            patience=4.0,
        )
        command = [sys.executable, "-m", "conformesh", "node", "--once", "--json"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        processes = [
            subprocess.Popen(
                [*command, str(folder)], env={**os.environ, **({FAILPOINT: point} if k == 2 else {})}, **pipes
            )
            for k, folder in enumerate(folders)
        ]
        ended = [finish(process) for process in processes]
        assert ended[2][0] == 137
        survivors = [0, 1, 3, 4]
        accounts = [read_account(folders[k] / ACCOUNT_FILE) for k in survivors]
        assert max(account.releases(1) for account in accounts) <= 2
        assert [ended[k][0] for k in survivors] == [0] * 4, [ended[k][2] for k in survivors]
        answers = {account.record(1).release.answer(ALPHA).threshold for account in accounts}
        assert {float(threshold_in(ended[k][1])) for k in survivors} == answers
