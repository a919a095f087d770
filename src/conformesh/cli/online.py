"""``conformesh online``: streams of scores, thresholds that follow them, and what is guaranteed of the misses."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from conformesh.cli import console, options
from conformesh.cli.command import PATH, Argument, Number, Option, WholeNumber, command
from conformesh.cli.options import GuaranteeOptions, NetworkOptions, RunOptions, read_faults
from conformesh.cli.recording import record_stream
from conformesh.common.progress import Progress
from conformesh.common.quantities import pluralize
from conformesh.common.random_streams import hash_numbers
from conformesh.common.random_streams import random_stream as drawn
from conformesh.files.atomic_writes import make_folder
from conformesh.files.stream_files import StreamFile, read_streams
from conformesh.files.table_writers import check_file_ending
from conformesh.files.tables import FileLayout
from conformesh.kernels.ranks import exact_alpha
from conformesh.online import COUPLINGS, LEARNERS, OnlineResult
from conformesh.online import online as follow
from conformesh.online.alarm import Alarm
from conformesh.online.result import OnlineObserver
from conformesh.plots.online import draw_online
from conformesh.plots.pictures import picture_file

if TYPE_CHECKING:
    from conformesh.view.online import OnlineRecorder

_PICTURE = Path("conformesh-online.png")
_COLUMNS = ("rule", "coverage", "worst device", "best device", "mean threshold", "guarantee")
_RIGHT = _COLUMNS[1:5]  # columns of numbers, which are aligned to the right


@command(
    Argument("stream", "STREAM", "CSV, Parquet or NPZ with time, device and score; - reads CSV from stdin."),
    options.guarantee_options("alpha"),
    Option(f"--learner {'|'.join(LEARNERS)}", "How a threshold follows the scores; by default the recommended."),
    Option(f"--coupling {'|'.join(COUPLINGS)}", "What devices tell each other; by default mixed."),
    Option(
        "--local <float>",
        "Step of each device's own integrator, which bounds its own misses; 0 for none.",
        type=Number(),
    ),
    Option("--scale <float>", "Weight of the newest score in each device's own scale; 0 for none.", type=Number()),
    Option("--delay <int>", "After how many further steps labels come.", type=WholeNumber(), default=0),
    options.network_options(),
    Option("--beside/--no-beside", "Show the learners that know no network beside it.", default=True),
    Option(
        "--alarm <float>", "Chance of a false drift alarm, at any time; 0 for no alarm.", type=Number(), default=0.05
    ),
    Option("--window <int>", "Steps over which picture and page average.", type=WholeNumber(1), default=200),
    options.out_option("The picture, as .png, .pdf or .svg; a folder gets a .png.", default=str(_PICTURE)),
    options.picture_option(),
    Option("--rows FILE", "Write every example with its threshold, as .parquet, .csv or .npz.", type=PATH),
    options.json_option("Print one JSON object instead of the table."),
    options.table_options("time", "device", "score"),
    options.run_options(
        options.seed_option(
            "Seed of the topology, by default 0, and of the alarm, by default a hash of the scores.", default=None
        ),
        options.fault_option(),
        options.recording_options(),
    ),
    *options.checkpoint_options("Saved from time to time and when interrupted; the same command goes on from there."),
)
def online(
    stream: str,
    guarantee: GuaranteeOptions,
    learner: str | None,
    coupling: str | None,
    local: float | None,
    scale: float | None,
    delay: int,
    network: NetworkOptions,
    beside: bool,
    alarm: float,
    window: int,
    out: Path,
    picture: bool,
    rows: Path | None,
    table: FileLayout,
    run: RunOptions,
    checkpoint: Path | None,
    resume: bool,
    as_json: bool,
) -> None:
    """Follow streams of scores with thresholds that keep their share of misses while the world drifts.

    Every step each device predicts with its threshold; then the label comes, and the devices talk to their neighbours.
    The last lines say how many were missed so far, and how far from alpha that can get whatever the scores are. With
    --checkpoint a run that was interrupted goes on when the same command is given again.
    """
    level = float(exact_alpha(guarantee.one_alpha))
    picture_path = picture_file(out, _PICTURE.name) if picture else None
    if rows is not None:  # perhaps hours before it is written
        check_file_ending(rows)
    if checkpoint is not None:
        make_folder(checkpoint.parent)
    with console.warnings_in_one_line():
        file = read_streams(stream, table.time or "time", table)
    built = network.connect(file.devices, file.name, run.seed or 0)
    scores = _in_rows(file, built.ids)
    # A false alarm has its chance over the alarm's draws too: they must differ from stream to stream. A hash of the
    # scores does that, and a run that is interrupted and resumed draws the same again.
    key = (
        hash_numbers(scores) >> 11 if run.seed is None else run.seed
    )  # 53 bits: the most that a JSON number keeps exactly
    named = (
        "the recommended" if learner is None and coupling is None else f"{learner or 'decaying'}, {coupling or 'mixed'}"
    )
    asked: dict[str, Any] = {"local": local, "scale": scale, "delays": delay, "faults": read_faults(run.fault)}
    title = named if learner or coupling else f"{named} rule"
    with record_stream(run.recording, built, title, window) as recorder:
        drift = _DriftWatch(alarm, level, key) if alarm else None
        long = _ResumableRuns(checkpoint, resume, scores.shape[1])
        watch = _StreamObserver(drift, recorder)
        result = long.run("following streams", "", watch, scores, built, level, learner, coupling, **asked)
        others = {
            name: long.run(f"{name}, alone", name, _StreamObserver(), scores, built, level, name, "alone", delays=delay)
            for name in (LEARNERS if beside else ())
        }
        raised = None if drift is None else drift.raised
        if rows is not None:
            result.save(rows)
        if picture_path is not None:
            with Progress("drawing"):
                draw_online(picture_path, result, min(window, result.steps), f"{named}, {built.name}, alpha {level:g}")
        if recorder is not None:
            recorder.finish(_facts(result, raised))
        data = _as_data(result, others, built.name, raised, None if raised is None else key)
        files = {what: path for what, path in (("picture", picture_path), ("rows", rows)) if path is not None}
        console.show_result(data, as_json, lambda: _report(named, result, others, raised, files))


class _DriftWatch:
    """The drift alarm of every device, block by block as a run goes on."""

    def __init__(self, chance: float, alpha: float, seed: int) -> None:
        self._alarm, self._draws = Alarm(level=chance, alpha=alpha), drawn(seed, "alarm")

    def begin(self, result: OnlineResult) -> None:
        self._result, self._done = result, 0
        self._state = self._alarm.begin(len(result.ids))
        self._labels = np.zeros(len(result.ids), dtype=np.int64)

    @property
    def raised(self) -> dict[str, int]:
        """At which of its labels each device that raised the alarm did so."""
        return {name: int(at) for name, at in zip(self._result.ids, self._state.raised_at, strict=True) if at}

    def advance(self, done: int) -> list[tuple[int, int, int]]:
        """Return row, step and label of everybody who raises the alarm up to this step."""
        scores = self._result.scores[:, self._done : done].T
        seen = ~np.isnan(scores)
        before = self._state.raised_at
        self._state = self._alarm.follow(self._state, scores, self._draws.random(scores.shape), seen)
        new = []
        for row in np.flatnonzero((before == 0) & (self._state.raised_at > 0)).tolist():
            label = int(self._state.raised_at[row])
            step = int(np.searchsorted(np.cumsum(seen[:, row]), label - self._labels[row])) + self._done + 1
            new.append((row, step, label))
        self._labels += seen.sum(axis=0)
        self._done = done
        return sorted(new, key=lambda one: one[1])


class _StreamObserver(OnlineObserver):
    """Sees a run go on, for whoever tells how far it is, the drift alarm, and what is recorded."""

    def __init__(self, drift: _DriftWatch | None = None, recorder: OnlineRecorder | None = None) -> None:
        self._drift, self._recorder = drift, recorder
        self.tell: Callable[[int], None] = lambda done: None

    def begin(self, result: OnlineResult) -> None:
        for part in (self._drift, self._recorder):
            if part is not None:
                part.begin(result)

    def __call__(self, done: int) -> None:
        self.tell(done)
        new = [] if self._drift is None else self._drift.advance(done)
        if self._recorder is not None:
            for row, step, label in new:
                self._recorder.alarm(row, step, f"at its label {label:,}")
            self._recorder(done)


def _in_rows(file: StreamFile, ids: tuple[str, ...]) -> Any:
    """Return the streams in the order of a network, empty for devices that have none."""
    row = {name: at for at, name in enumerate(file.devices)}
    nothing = np.full(len(file.times), np.nan)
    return np.array([file.scores[row[name]] if name in row else nothing for name in ids])


class _ResumableRuns:
    """Runs that show how far they are, and that can be stopped and go on; each has a file of its own."""

    def __init__(self, checkpoint: Path | None, resume: bool, steps: int) -> None:
        self.checkpoint, self.resume, self.steps = checkpoint, resume, steps

    def run(self, what: str, name: str, watch: _StreamObserver, *asked: Any, **options: Any) -> OnlineResult:
        """Follow the streams; what is saved of a lone learner has its name in the name of the file."""
        done, file = 0, self.checkpoint
        if file is not None and name:
            file = file.with_name(f"{file.stem}-{name}{file.suffix}")
        resumed = file is not None and self.resume and file.exists()

        def tell(now: int) -> None:
            nonlocal done
            if resumed and not done:
                bar.begin(self.steps, now)  # the time left follows from the pace of now
                console.print_note(
                    f"{what}: going on after step {now:,} of {self.steps:,}, from {file}; --no-resume starts anew"
                )
            bar.steps = done = now

        watch.tell = tell
        try:
            with Progress(what, self.steps, "steps") as bar:
                return follow(*asked, observer=watch, checkpoint=file, resume=self.resume, **options)
        except KeyboardInterrupt:
            if file is None:
                console.print_note("nothing was saved; with --checkpoint FILE the same command would go on from here")
            else:
                console.print_note(
                    f"{what}: step {done:,} of {self.steps:,} is saved in {file}; the same command goes on there"
                )
            raise


def _cells(name: str, result: OnlineResult) -> tuple[str, ...]:
    rates, finite = result.rates, result.thresholds[np.isfinite(result.thresholds)]
    account = result.account()
    mean = f"{finite.mean():.4g}" if len(finite) == result.thresholds.size else "inf"
    promise = f"within {math.ceil(1000 * account.bound - 1e-9) / 1000:.3f}" if account.gap is not None else "none"
    covered = (f"{1 - account.rate:.4f}", f"{1 - np.nanmax(rates):.4f}", f"{1 - np.nanmin(rates):.4f}")
    return name, *covered, mean, promise


def _report(
    named: str,
    result: OnlineResult,
    others: dict[str, OnlineResult],
    raised: dict[str, int] | None,
    files: dict[str, Path],
) -> None:
    labels = pluralize(result.account().labels, "label")
    print(f"{pluralize(len(result.ids), 'device')}, {pluralize(result.steps, 'step')}, {labels}\n")
    table = [_cells(named, result), *(_cells(f"{name}, alone", one) for name, one in others.items())]
    console.print_table(_COLUMNS, table, right=_RIGHT)
    print(f"\nmisses of all devices: {result.account()}")
    if (worst := _worst(result)) is not None:
        print(f"of {worst}, which missed most: {result.account(worst)}")
    if raised is not None:
        print(f"drift alarm: {_drifted(result, raised)}")
    for what, path in files.items():
        print(f"{what}: {path}")


def _drifted(result: OnlineResult, raised: dict[str, int]) -> str:
    first = [f"{name} at its label {at:,}" for name, at in [*raised.items()][:5]]
    return ", ".join([f"{pluralize(len(raised), 'device')} of {len(result.ids)}", *first])


def _facts(result: OnlineResult, raised: dict[str, int] | None) -> list[tuple[str, str]]:
    """Return how a run ended, as its page says it."""
    facts = [("misses", str(result.account()))]
    if (worst := _worst(result)) is not None:
        facts.append((f"most, of {worst}", str(result.account(worst))))
    return facts if raised is None else [*facts, ("drift alarm", _drifted(result, raised))]


def _worst(result: OnlineResult) -> str | None:
    """Return who missed the largest share; None where no label came."""
    rates = result.rates
    return None if np.isnan(rates).all() else result.ids[int(np.nanargmax(rates))]


def _as_data(
    result: OnlineResult, others: dict[str, OnlineResult], network: str, raised: dict[str, int] | None, seed: int | None
) -> dict[str, Any]:
    return {
        "network": network,
        "alpha": result.alpha,
        "devices": len(result.ids),
        "steps": result.steps,
        **_numbers(result),
        "device_misses": {
            name: None if math.isnan(rate) else rate
            for name, rate in zip(result.ids, result.rates.tolist(), strict=True)
        },
        "alone": {name: _numbers(one) for name, one in others.items()},
        "drift": raised,
        "alarm_seed": seed,
    }


def _numbers(result: OnlineResult) -> dict[str, Any]:
    account = result.account()
    return {
        "labels": account.labels,
        "misses": account.misses,
        "rate": None if math.isnan(account.rate) else account.rate,
        "bound": None if account.gap is None else account.bound,
        "words": str(account),
    }
