"""``conformesh mesh``: make the folders of a mesh, change who is in it, and check that all is well."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from conformesh.cli import SUBCOMMANDS, console, options
from conformesh.cli.command import (
    FILES,
    MESH,
    PATH,
    RUNNING,
    SOURCE,
    Argument,
    Option,
    WholeNumber,
    command,
    parse_whole_number,
)
from conformesh.cli.options import AdaptOptions, GuaranteeOptions, NetworkOptions, RunOptions
from conformesh.cli.results import settle_recorded_score
from conformesh.common.quantities import pluralize
from conformesh.files.score_files import read_scores
from conformesh.files.tables import FileLayout
from conformesh.graph.network import Network as Graph
from conformesh.kernels.ranks import Requirement
from conformesh.mesh.config import local_scores
from conformesh.mesh.config.checks import SERVER_WARNING, examine_folders
from conformesh.mesh.config.device_toml import DEVICE_FILE, DeviceConfig, read_device
from conformesh.mesh.config.epochs import FIRST_EPOCH, EpochClock, declare_epoch, epoch_seconds, read_epoch
from conformesh.mesh.config.folders import (
    add_device,
    current_roster,
    init_mesh,
    reissue_device,
    renew_device,
    revoke_device,
    scatter_scores,
)
from conformesh.mesh.config.labelled_rows import output_columns, read_all_rows, row_owners
from conformesh.mesh.config.reach import reach_neighbours
from conformesh.mesh.config.roster import ROSTER_FILE
from conformesh.mesh.config.settings import OUTPUTS_FILE, SETTINGS
from conformesh.mesh.http.client import Client, NodeError
from conformesh.mesh.node.membership import put_roster_into_folder
from conformesh.methods import get_method
from conformesh.scores import Score

_ROOT = Argument("root", "ROOT", "The folder of the mesh.", type=PATH)
_DEVICE = Argument("device", "DEVICE", "The device's name.", type=str)
# The default in days: a certificate must be renewed once a year.
_DAYS = Option("--days <int>", "How long a certificate is valid.", type=WholeNumber(1), default=365, panel=MESH)
# A roster number, which counts from 1.
_SETTLED = Option(
    "--settled NUMBER",
    "A roster with a certified result: those before it are out of use.",
    type=WholeNumber(1),
    panel=MESH,
)


@command()
def mesh() -> None:
    """One process per device, over real links: make the folders, change who is in, check that all is well."""
    if click.get_current_context().invoked_subcommand is None:
        names = " | ".join(SUBCOMMANDS["mesh"])
        print(f"conformesh mesh {names}: one folder and one process per device; add --help to each")


@command(
    Argument("root", "ROOT", "A new folder.", type=PATH),
    options.devices_option(),
    Option(
        "--scores SCORES",
        "A file with device and score (with --adapt: labelled outputs), which is distributed to the folders.",
        type=SOURCE,
    ),
    options.guarantee_options(
        "alpha", "mixture", "mixture_bound", "rank_rule", "pac_confidence", "time_uniform", recalibrates=True
    ),
    options.run_options(
        options.method_option(),
        options.seed_option("Seed of the topology and of the method."),
        options.method_options(chosen=True),
    ),
    options.network_options(),
    options.score_options(),
    options.adapt_options(),
    options.json_option(),
    options.table_options("share", csv=False),
    Option(
        "--model FILE",
        "The model the scores come from: its digest must be the same everywhere.",
        type=PATH,
        panel=FILES,
    ),
    Option("--hosts FILE", "device host[:port] a line; by default all on this machine.", type=PATH, panel=MESH),
    Option("--base-port <int>", "The first port.", type=WholeNumber(1), default=7600, panel=MESH),
    _DAYS,
    Option("--insecure", "No certificates: only for experiments.", panel=MESH),
    *(options.setting_option(name) for name in ("mode", "patience", "on_lost", "quorum")),
    Option(
        "--set KEY=VALUE",
        "Any other setting, as timing.heartbeat=5 or online.learning=0.05; may be repeated. `conformesh mesh settings` "
        "lists them.",
        name="changes",
        panel=RUNNING,
    ),
)
def init(
    root: Path,
    devices: int | None,
    scores: str | None,
    guarantee: GuaranteeOptions,
    run: RunOptions,
    network: NetworkOptions,
    score: Score | None,
    adapt: AdaptOptions,
    table: FileLayout,
    model: Path | None,
    changes: tuple[str, ...],
    as_json: bool,
    **more: Any,
) -> None:
    """Make the folders of a new mesh: a configuration, a certificate and a place for scores for every device.

    The devices are counted by --devices, or named by --scores or by a file of edges. ROOT/README.md says what to copy
    where. The options of a method are listed by: conformesh mesh init --method NAME --help
    """
    method, options = run.method, run.checked_options()
    alpha, kind = guarantee.one_alpha, score
    if scores is not None and adapt.name is None:
        kind = settle_recorded_score(read_scores(scores).made_by, kind, scores)
    built = _network(devices, scores, network, run.seed or 0, adapt)
    settings = _settings(guarantee.requirement(scores, table), guarantee.time_uniform, kind, changes)
    folders = init_mesh(
        root,
        built,
        **{**more, **_adapt_settings(adapt, scores, settings), **settings},
        method=method,
        options=options,
        alpha=alpha,
        model=None if model is None else _digest(model),
        check=None if scores is None or adapt.name is None else partial(_check_rows, scores, settings),
    )
    held = {} if scores is None else scatter_scores(root, scores)
    config = read_device(folders[0])
    facts = {
        "mesh": config.mesh,
        "root": str(root),
        "devices": [folder.name for folder in folders],
        "edges": len(config.edges),
        "scores": sum(held.values()),
        "method": method,
        "alpha": alpha,
        "insecure": config.security.insecure,
    }
    shown = f"{len(folders)}: {folders[0].name}" + (f" to {folders[-1].name}" if len(folders) > 1 else "")
    lines = [("devices", f"{shown}, {len(config.edges)} edges ({built.name})"), ("method", f"{method}, alpha {alpha}")]
    rows = f"{sum(held.values()):,} spread over the folders" if held else f"none yet: {_heading(folders[0], config)}"
    lines.append(("scores" if adapt.name is None else "rows", rows))
    if adapt.name is not None:
        lines.append(("adapted", f"{config.adaptation!r}, to the labelled outputs in {config.scores.file}"))
        lines.append(("outputs", _columns_in_words(config.scores.output_columns)))
    if config.learner is not None:
        lines.append(("online", config.learner.words))
    if get_method(method).description.needs == "server":
        lines.append(("note", f"{method} {SERVER_WARNING}"))
    lines.append(("next", f"read {root / 'README.md'}, then: conformesh mesh check {root}"))
    console.show_result(facts, as_json, lambda: console.print_facts("conformesh mesh", lines))


def _settings(
    requirement: Requirement, time_uniform: bool | None, score: Score | None, changes: Sequence[str]
) -> dict[str, Any]:
    """Return the settings of a guarantee and a score, and those of ``--set``."""
    found: dict[str, Any] = {"mixture": requirement.mixture, "rank_rule": requirement.rank_rule}
    if requirement.mixture_bound is not None:
        found["mixture_bound"] = str(requirement.mixture_bound)
    if requirement.pac_confidence is not None:
        found["pac_confidence"] = str(requirement.pac_confidence)
    if time_uniform is not None:
        found["time_uniform"] = time_uniform
    if requirement.shares is not None:
        found["shares"] = {name: str(share) for name, share in requirement.shares.items()}
    if score is not None:
        found["score"] = score.name
        found["score_options"] = {name: value for name, value in score.options().items() if value is not None}
    return found | options.read_settings(changes)


def _adapt_settings(adapt: AdaptOptions, scores: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of scores that adapt: the columns of outputs are those of the file, if there is one."""
    if (chosen := adapt.chosen) is None:
        return {}
    plain = {name: [*value] if isinstance(value, tuple) else value for name, value in adapt.options.items()}
    found: dict[str, Any] = {"adapt": adapt.name, "adapt_options": plain, "file": OUTPUTS_FILE}
    if scores is not None and "output_columns" not in given:
        groups = (given.get("group_column", SETTINGS["group_column"].default),) if given.get("groups") else ()
        found["output_columns"] = output_columns(scores, given.get("label_column", "label"), groups)
    elif chosen.task == "regression":
        found["output_columns"] = ("prediction",)
    return found


def _check_rows(scores: str, given: Mapping[str, Any], config: DeviceConfig) -> None:
    """Refuse a file of labelled outputs that does not fit, before folders are made."""
    try:
        read_all_rows(config, scores)
    except ValueError as problem:
        if "output_columns" in given:
            raise
        raise ValueError(
            f"{problem}. Columns of outputs are taken to be {_columns_in_words(config.scores.output_columns)}; name "
            "them if they are others: --set scores.output_columns=NAME,NAME,..."
        ) from None


def _columns_in_words(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f", ... ({len(names)})" if len(names) > 8 else "")


def _heading(folder: Path, config: DeviceConfig) -> str:
    return config.path("scores").read_text(encoding="utf-8").strip()


@command()
def settings() -> None:
    """List every setting of device.toml with its default, as `mesh init --set` takes it."""
    rows = []
    for one in SETTINGS.values():
        default = "" if one.default in (None, (), {}) else str(one.default)
        rows.append((one.path, default, one.help))
    console.print_table(("setting", "default", "meaning"), rows)


@command(
    _ROOT,
    _DEVICE,
    Option("--neighbour DEVICE", "A neighbour; may be repeated.", multiple=True, required=True),
    Option("--host HOST[:PORT]", "Where it is reached.", default="127.0.0.1"),
    _DAYS,
    _SETTLED,
)
def add(root: Path, device: str, neighbour: tuple[str, ...], host: str, days: int, settled: int | None) -> None:
    """Add a device with edges to its neighbours: a folder for it, and a new roster for everybody."""
    folder = add_device(root, device, [*neighbour], host, days=days, settled=settled)
    config = read_device(folder)
    print(f"added {device} at {config.endpoints[device]}: copy {folder} there; {_hand_out(root)}")


@command(
    _ROOT,
    _DEVICE,
    Option("--certificate", "Only its certificates so far: it stays, and gets a new one."),
    _DAYS,
    _SETTLED,
    Option("--forget", "All devices that were taken out are off for good.", panel=MESH),
)
def revoke(root: Path, device: str, certificate: bool, days: int, settled: int | None, forget: bool) -> None:
    """Take a device out of the mesh, or only the certificates it has had: they are no longer let in.

    The name of a device that was taken out is never used again: add it under a new one, if it comes back. With
    --certificate it keeps its name; a key that was stolen from it is of no use any more.
    """
    if certificate:
        identity = reissue_device(root, device, days=days, settled=settled)
        first = "copy device.pem and device.key to its machine first, or it is shut out too; then"
        print(f"revoked the certificates of {device} before {identity.name}; {first} {_hand_out(root)}")
        return
    serial = revoke_device(root, device, settled=settled, forget=forget)
    which = f" (certificate {serial})" if serial else ""
    print(f"revoked {device}{which}; {_hand_out(root)}")


@command(_ROOT, _DEVICE, _DAYS)
def renew(root: Path, device: str, days: int) -> None:
    """Make a new key and certificate for a device, before the old one expires.

    The old one stays good until then. If its key was stolen, use `mesh revoke --certificate` instead. A device that
    runs takes the new files up by itself.
    """
    before = current_roster(root)
    identity = renew_device(root, device, days=days)
    more = "" if current_roster(root) == before else f"; {_hand_out(root)}"
    print(f"renewed {device} until {identity.not_after:%Y-%m-%d}; copy device.pem and device.key to its machine{more}")


@command(
    Argument("roster", "ROSTER", "A roster.json, as the folder of a mesh has it.", type=PATH),
    Argument("to", "FOLDER|ADDRESS", "A device's folder, its socket, or 127.0.0.1:PORT."),
)
def hand(roster: Path, to: str) -> None:
    """Hand a newer roster to a device: if it runs, it passes it on to the others by itself.

    To a device that does not run, in a folder, it is copied once it is found to be good.
    """
    try:
        body = roster.read_bytes()
    except OSError as problem:
        raise ValueError(f"{roster}: cannot read the roster: {problem.strerror}") from None
    folder = Path(to)
    try:
        print(Client(to).submit_roster(body))
    except NodeError as problem:
        if problem.status is not None or not (folder / DEVICE_FILE).is_file():
            raise
        print(put_roster_into_folder(body, folder, read_device(folder)))


@command(
    Argument(
        "scores", "SCORES", "A file with the scores of this device, or its labelled outputs; - reads CSV from stdin."
    ),
    Argument("folder", "FOLDER", "The device's folder.", type=PATH),
    options.json_option(),
)
def put_scores(scores: str, folder: Path, as_json: bool) -> None:
    """Replace the scores of a device in one step: a device that runs never sees half a file.

    The file is checked first, and copied to where device.toml says. A device that runs notices it within 3 s and asks
    the others for a new run if the scores have changed. A private device asks for nothing: they count from the next
    run on.
    """
    config = read_device(folder)
    found = local_scores.replace_scores(config, scores)
    if (
        config.is_private
        and len(found)
        and found.epochs is None
        and found.rows is None  # labelled outputs have no epochs
        and (last := EpochClock(config).last_closed()) > FIRST_EPOCH
    ):
        console.print_note(
            f"{scores} has no column 'epoch', so that all its scores are of epoch {FIRST_EPOCH}. Epoch {last} has "
            "closed, and no later run counts them; add the epoch of each score"
        )
    if found.problem:
        console.print_note(found.problem)
    try:
        Client(folder).status()
        running = True
    except NodeError:
        running = False
    target = config.path("scores")
    facts = {"device": config.name, "file": str(target), "scores": len(found), "digest": found.digest}
    when = "the device runs and uses them within 3 s" if running else "the device uses them when it starts"
    if config.is_private:
        when = "they count from the next run on"
        if found.rows is not None:
            when += ", which is refused if the device has taken part with other rows: two sums would tell them apart"
    kind = "scores" if found.rows is None else "labelled rows"
    words = f"put {len(found):,} {kind} of {config.name} into {target} (digest {found.digest}); {when}"
    console.show_result({**facts, "running": running}, as_json, lambda: print(words))


def _hand_out(root: Path) -> str:
    """What to do with a new roster."""
    return (
        f"hand roster {current_roster(root)} to any device that runs: conformesh mesh hand {root / ROSTER_FILE} FOLDER"
    )


@command(
    Argument("folders", "FOLDER...", "Folders of devices, or of a whole mesh.", nargs=-1, required=True, type=PATH),
    Option("--offline", "Do not try to reach neighbours."),
    Option("--running", "A neighbour that does not listen is an error."),
    options.json_option(),
)
def check(folders: tuple[Path, ...], offline: bool, running: bool, as_json: bool) -> None:
    """Check folders before their devices start: files, certificates, scores, agreement, and who answers.

    Warnings are shown and pass; an error ends with exit code 1. Neighbours are tried from this machine.
    """
    chosen = [one for folder in folders for one in _devices_in(folder)]
    found, differing = examine_folders(chosen, roots=folders)
    if not offline:
        unreadable = {finding.device for finding in found if finding.code == "unreadable"}
        readable = [read_device(folder) for folder in chosen if folder.name not in unreadable]
        reached = [finding for config in readable for finding in reach_neighbours(config)]
        found += [replace(f, level="error") if running and f.code == "silent" else f for f in reached]
    good = all(finding.level != "error" for finding in found)
    data = {"ok": good, "findings": [asdict(finding) for finding in found], "differences": differing}
    rows = [(finding.device, finding.what, finding.level, finding.text) for finding in found]
    columns = ("device", "what", "is", "because")
    console.show_result(data, as_json, lambda: console.print_table(columns, rows, group_by="device"))
    if not good:
        click.get_current_context().exit(1)


def _devices_in(folder: Path) -> Sequence[Path]:
    """A device's folder itself, or those inside the folder of a mesh."""
    if (folder / DEVICE_FILE).exists():
        return [folder]
    return sorted(path.parent for path in folder.glob(f"*/{DEVICE_FILE}")) or [folder]


def _network(devices: int | None, scores: str | None, network: NetworkOptions, seed: int, adapt: AdaptOptions) -> Graph:
    if devices is not None and (scores is not None or network.file is not None):
        raise ValueError(
            f"--devices {devices} counts devices that --scores or a file of edges names already; leave it out"
        )
    if scores is not None:
        names = read_scores(scores).devices if adapt.name is None else row_owners(scores)
        return network.connect(names, scores, seed)
    if devices is None and network.file is None:
        raise ValueError("a mesh needs --devices to count its devices, or --scores or a file of edges to name them")
    names = () if devices is None else tuple(map(str, range(devices)))
    return network.connect(names, "--devices", seed)


def _digest(model: Path) -> str:
    with model.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@command(
    Argument("folder", "FOLDER", "A device's folder, or that of a whole mesh.", type=PATH),
    Argument("number", "[N]", "Declare that epoch N has closed.", required=False, type=str),
    options.json_option(),
)
def epoch(folder: Path, number: str | None, as_json: bool) -> None:
    """Show the last closed epoch of a private mesh and what was released of it, or declare that the next has closed.

    Each score belongs to an epoch, the column epoch of its file, and each epoch is released as often as the option
    releases says. Devices that run ask for a run when an epoch closes. Numbers never fall. With the option
    epoch_seconds the clock closes epochs.
    """
    from conformesh.mesh.node.calibration_run import device_account

    configs = [read_device(one) for one in _devices_in(folder)]
    for config in configs:
        if not config.is_private:
            raise ValueError(
                f"{config.folder}: method {config.run.method!r} has no epochs; they are for private methods"
            )
    if number is not None:
        wanted = parse_whole_number(number, "epoch", 1)
        for config in configs:  # all are checked before the first is changed
            if epoch_seconds(config) is None and wanted < (before := read_epoch(config.folder)):
                raise ValueError(f"{config.folder}: epoch {before} has closed, and numbers never fall; got {wanted}")
        for config in configs:
            declare_epoch(config, wanted)
    rows = []
    for config in configs:
        epochs = EpochClock(config)
        last = epochs.last_closed()
        account = device_account(config, last)
        problem = account.problem or epochs.problem
        rows.append((config.name, last, account.released(last), problem or account.refusal()))
    keys = ("device", "epoch", "releases", "refusal")
    data = {"devices": [dict(zip(keys, row, strict=True)) for row in rows]}
    shown = [
        (name, str(last), "exact" if count is None else pluralize(count, "time"), words or "a run may release it")
        for name, last, count, words in rows
    ]
    columns = ("device", "last closed epoch", "released", "now")
    console.show_result(data, as_json, lambda: console.print_table(columns, shown))
