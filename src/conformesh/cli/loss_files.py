"""Losses from files: a row for each item and lambda, with its device, its item, its lambda and its loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

from conformesh.io.score_files import column_named
from conformesh.io.tables import Layout, Table, read_table, same_length
from conformesh.losses import Steps
from conformesh.names import natural_order

COLUMNS = ("item", "lambda", "loss")
NEEDED = "columns 'device', 'item', 'lambda' and 'loss', one row per item and lambda"


@dataclass(frozen=True, eq=False)
class LossFile:
    """The losses of every device that has some.

    Attributes
    ----------
    devices
        Device names in natural order.
    steps
        The losses of each device, in that order.
    name
        Where they come from, for errors.
    """

    devices: tuple[str, ...]
    steps: tuple[Steps, ...]
    name: str

    def for_devices(self, ids: tuple[str, ...]) -> list[Steps]:
        """Return the losses of each of `ids`, none where a device has no items."""
        held = dict(zip(self.devices, self.steps, strict=True))
        return [held.get(device, Steps.none()) for device in ids]


def read_losses(source: str, stdin: BinaryIO | None = None, layout: Layout | None = None) -> LossFile:
    """Read losses from CSV, Parquet or NPZ; "-" reads CSV from standard input. Whether they fit comes later."""
    layout = layout or Layout()
    return losses_in(read_table(source, NEEDED, stdin, layout), layout)


def losses_in(table: Table, layout: Layout) -> LossFile:
    """Sort the rows of a table by device and item."""
    device = column_named(table, "device", layout.device)
    same_length(table, (device, *COLUMNS))
    names, index = table.names(device)
    items, which = table.names("item")
    lambdas, losses = table.numbers("lambda"), table.numbers("loss")
    held = {}
    for k, name in enumerate(names):
        mine = index == k
        try:
            held[name] = Steps.of_table(np.array(items)[which[mine]], lambdas[mine], losses[mine])
        except ValueError as problem:
            raise ValueError(f"{table.name}: device {name}, {problem}") from None
    devices = natural_order(names)
    return LossFile(devices, tuple(held[name] for name in devices), table.name)
