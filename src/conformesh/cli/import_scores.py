"""``conformesh scores import``: scores that saved objects of other libraries keep, as a file of scores."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from conformesh.cli import console
from conformesh.io.imports import import_scores, read_calibrated
from conformesh.io.score_files import RecordedScore
from conformesh.io.writing import check_ending, write_scores


def import_(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="Saved objects of MAPIE, TorchCP or crepes, one per device: .pkl, .joblib or .pt; NAME=FILE names the "
            "device, by default the file does.",
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the scores go: .csv, .parquet or .npz.")],
    trust: Annotated[
        bool, typer.Option("--trust", help="Read the files, which runs whatever program is in them.")
    ] = False,
) -> None:
    """Take the calibration scores out of saved objects of other libraries, one object per device.

    Reading such a file runs the program that is in it: give --trust only for files whose author you know.
    """
    check_ending(out)
    found = {}
    for word in files:
        name, _, path = word.rpartition("=")
        owner = name or Path(path).stem
        if owner in found:
            raise ValueError(f"two files are called {owner!r}; name their devices: NAME=FILE")
        found[owner] = import_scores(read_calibrated(path, trust=trust))
    kinds = {(one.score, tuple(one.options.items())) for one in found.values()}
    if len(kinds) > 1:
        names = ", ".join(sorted({str(score) for score, _ in kinds}))
        raise ValueError(f"all devices must have scores of one kind, got {names}")
    for note in dict.fromkeys(note for one in found.values() for note in one.notes):
        console.note(note)
    owners = [owner for owner, one in found.items() for _ in one.values]
    values = np.concatenate([one.values for one in found.values()])
    (score, options) = kinds.pop()
    made_by = None if score is None else RecordedScore(score, dict(options))
    write_scores(out, owners, values, made_by=made_by)
    words = ", ".join([str(score), *(f"{key}={value}" for key, value in options)])
    console.print_facts(
        "conformesh scores import",
        [
            ("devices", f"{len(found):,} with {len(values):,} scores in all"),
            ("score", "none of ours" if score is None else f"{words}, recorded in the file"),
            ("written", str(out)),
        ],
    )
