"""``conformesh mesh epoch``: which epoch of a private mesh has closed last, and how an operator closes the next."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from conformesh.cli import console
from conformesh.cli.mesh import devices_in
from conformesh.cli.options import whole
from conformesh.mesh.config.device_toml import read_device
from conformesh.mesh.config.epochs import Epochs, declare_epoch, epoch_seconds, read_epoch
from conformesh.mesh.node.running import account_of
from conformesh.quantities import several


def epoch(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A device's folder, or that of a whole mesh.")],
    number: Annotated[
        str | None, typer.Argument(metavar="[N]", help="Declare that epoch N has closed.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Show the last closed epoch of a private mesh and what was released of it, or declare that the next has closed.

    Each score belongs to an epoch, the column epoch of its file, and each epoch is released as often as the option
    releases says. Devices that run ask for a run when an epoch closes. Numbers never fall. With the option
    epoch_seconds the clock closes epochs.
    """
    configs = [read_device(one) for one in devices_in(folder)]
    for config in configs:
        if not config.is_private:
            raise ValueError(f"{config.folder}: method {config.method!r} has no epochs; they are for private methods")
    if number is not None:
        wanted = whole(number, "epoch", 1)
        for config in configs:  # all are checked before the first is changed
            if epoch_seconds(config) is None and wanted < (before := read_epoch(config.folder)):
                raise ValueError(f"{config.folder}: epoch {before} has closed, and numbers never fall; got {wanted}")
        for config in configs:
            declare_epoch(config, wanted)
    rows = []
    for config in configs:
        epochs = Epochs(config)
        last = epochs.last()
        account = account_of(config, last)
        problem = account.problem or epochs.problem
        rows.append((config.name, last, account.released(last), problem or account.refusal()))
    if as_json:
        keys = ("device", "epoch", "releases", "refusal")
        print(json.dumps({"devices": [dict(zip(keys, row, strict=True)) for row in rows]}))
        return
    shown = [
        (name, str(last), "exact" if count is None else several(count, "time"), words or "a run may release it")
        for name, last, count, words in rows
    ]
    console.print_table(("device", "last closed epoch", "released", "now"), shown)
