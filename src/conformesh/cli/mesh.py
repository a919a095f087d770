"""``conformesh mesh``: make the folders of a mesh, change who is in it, and check that all is well."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import typer

from conformesh.cli import GROUPS, console
from conformesh.cli.calibrate import named_score, score_in_file
from conformesh.cli.networks import Graph, Topology, TopologyOption, chosen_network
from conformesh.cli.options import as_type, checked_options, key_values, whole, with_flags
from conformesh.cli.panels import FILES, MESH, RUNNING
from conformesh.cli.promising import PacConfidence, Rank, Target, chosen_promise
from conformesh.graph.network import Network
from conformesh.io.score_files import ScoreFile, read_scores
from conformesh.kernels.ranks import AUTO
from conformesh.mesh.config import MODES, ON_LOST, own_scores
from conformesh.mesh.config.checking import (
    FLOODS,
    Problem,
    compare_agreements,
    compare_maps,
    examine_authority,
    examine_folder,
    few,
)
from conformesh.mesh.config.device_toml import FILE, read_device
from conformesh.mesh.config.epochs import FIRST, Epochs
from conformesh.mesh.config.folders import (
    add_device,
    current_roster,
    init_mesh,
    reissue_device,
    renew_device,
    revoke_device,
    scatter_scores,
)
from conformesh.mesh.config.own_scores import EMPTY
from conformesh.mesh.config.reach import reach_neighbours
from conformesh.mesh.config.roster import FILE as ROSTER
from conformesh.mesh.http.client import Client, NodeError
from conformesh.mesh.node.membership import hand_to_folder
from conformesh.methods import METHODS, get_method
from conformesh.online.counters import Counting
from conformesh.scores import SCORES

Root = Annotated[Path, typer.Argument(metavar="ROOT", help="The folder of the mesh.")]
Device = Annotated[str, typer.Argument(metavar="DEVICE", help="The device's name.")]
Days = Annotated[str, typer.Option(metavar="<int>", help="How long a certificate is valid.", rich_help_panel=MESH)]
Quorum = Annotated[
    str | None,
    typer.Option(
        metavar="<int>",
        help="How many devices must be left to continue; more than half, by default the fewest such.",
        show_default=False,
        rich_help_panel=RUNNING,
    ),
]
Settled = Annotated[
    str | None,
    typer.Option(
        metavar="NUMBER",
        help="A roster with a certified result: those before it are out of use.",
        show_default=False,
        rich_help_panel=MESH,
    ),
]


def mesh(ctx: typer.Context) -> None:
    """One process per device, over real links: make the folders, change who is in, check that all is well."""
    if ctx.invoked_subcommand is None:
        print(
            f"conformesh mesh {' | '.join(GROUPS['mesh'])}: one folder and one process per device; add --help to each"
        )


@with_flags
def init(
    root: Annotated[Path, typer.Argument(metavar="ROOT", help="A new folder.")],
    devices: Annotated[
        str | None, typer.Option(metavar="<int>", help="How many devices there are.", show_default=False)
    ] = None,
    scores: Annotated[
        str | None,
        typer.Option(
            metavar="SCORES", help="A file with device and score, spread over the folders.", show_default=False
        ),
    ] = None,
    alpha: Annotated[str, typer.Option(metavar="<float>", help="Tolerated miscoverage between 0 and 1.")] = "0.1",
    method: Annotated[str, typer.Option(help=f"One of {', '.join(METHODS)}.")] = "e-dcp",
    topology: Topology = None,
    topology_option: TopologyOption = None,
    graph: Graph = None,
    score: Annotated[
        str | None, typer.Option(help=f"What the scores are: {', '.join(SCORES)}.", show_default=False)
    ] = None,
    score_option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="An option of the score, as k_reg=2; may be repeated.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
    target: Target = "sizes",
    rank: Rank = AUTO,
    pac_confidence: PacConfidence = None,
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The model the scores come from: its digest must be the same everywhere.",
            rich_help_panel=FILES,
        ),
    ] = None,
    hosts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="device host[:port] a line; by default all on this machine.", rich_help_panel=MESH
        ),
    ] = None,
    base_port: Annotated[str, typer.Option(metavar="<int>", help="The first port.", rich_help_panel=MESH)] = "7600",
    days: Days = "365",
    insecure: Annotated[
        bool, typer.Option("--insecure", help="No certificates: only for experiments.", rich_help_panel=MESH)
    ] = False,
    patience: Annotated[
        str, typer.Option(metavar="<float>", help="Seconds to wait for a neighbour.", rich_help_panel=RUNNING)
    ] = "30",
    on_lost: Annotated[
        str, typer.Option(metavar="|".join(ON_LOST), help="What a lost neighbour means.", rich_help_panel=RUNNING)
    ] = "fail",
    quorum: Quorum = None,
    pulse: Annotated[
        str,
        typer.Option(
            metavar="<float>",
            help="Seconds between two pulses, by which devices tell each other how they are; 0 for none.",
            rich_help_panel=RUNNING,
        ),
    ] = "1",
    online: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Learn from labels that come later: learning=, local= and bound=, and perhaps scale= and alarm=.",
            rich_help_panel=RUNNING,
        ),
    ] = None,
    mode: Annotated[
        str,
        typer.Option(
            metavar="|".join(MODES),
            help="Talk in rounds, or at any time without waiting for anybody.",
            rich_help_panel=RUNNING,
        ),
    ] = "rounds",
    seed: Annotated[
        str, typer.Option(metavar="<int>", help="Seed of the topology and of the method.", rich_help_panel=RUNNING)
    ] = "0",
    **options: Any,
) -> None:
    """Make the folders of a new mesh: a configuration, a certificate and a place for scores for every device.

    The devices are counted by --devices, or named by --scores or --graph. ROOT/README.md says what to copy where.
    """
    if "seed" in get_method(method).option_names():
        options["seed"] = whole(seed, "seed", 0)
    kind = named_score(score, score_option or [])
    if scores is not None:
        kind = score_in_file(read_scores(scores).made_by, kind, scores)
    network = _network(devices, scores, topology, topology_option or [], graph, whole(seed, "seed", 0))
    folders = init_mesh(
        root,
        network,
        hosts=hosts,
        base_port=whole(base_port, "base-port", 1),
        mode=cast(Literal["rounds", "anytime"], mode),
        method=method,
        alpha=alpha,
        requirement=chosen_promise(target, rank, pac_confidence, scores),
        options=checked_options(method, options),
        score=None if kind is None else kind.name,
        score_options={} if kind is None else {name: v for name, v in kind.options().items() if v is not None},
        model=None if model is None else _digest(model),
        patience=as_type(patience, float, "patience"),
        on_lost=cast(Literal["fail", "continue"], on_lost),
        pulse=as_type(pulse, float, "pulse"),
        online=key_values(online or [], "online option", {one.name: float for one in fields(Counting)}),
        quorum=None if quorum is None else whole(quorum, "quorum", 1),
        insecure=insecure,
        days=whole(days, "days", 1),
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
        "insecure": insecure,
    }
    if as_json:
        print(json.dumps(facts))
        return
    shown = f"{len(folders)}: {folders[0].name}" + (f" to {folders[-1].name}" if len(folders) > 1 else "")
    lines = [
        ("devices", f"{shown}, {len(config.edges)} edges ({network.name})"),
        ("method", f"{method}, alpha {alpha}"),
    ]
    lines.append(
        ("scores", f"{sum(held.values()):,} spread over the folders" if held else f"none yet: {EMPTY.strip()}")
    )
    if config.rule is not None:
        lines.append(("online", config.rule.words))
    if get_method(method).needs == "server":
        lines.append(("note", f"{method} {FLOODS}"))
    lines.append(("next", f"read {root / 'README.md'}, then: conformesh mesh check {root}"))
    console.print_facts("conformesh mesh", lines)


def add(
    root: Root,
    device: Device,
    neighbour: Annotated[list[str], typer.Option(metavar="DEVICE", help="A neighbour; may be repeated.")],
    host: Annotated[str, typer.Option(metavar="HOST[:PORT]", help="Where it is reached.")] = "127.0.0.1",
    days: Days = "365",
    settled: Settled = None,
) -> None:
    """Add a device with edges to its neighbours: a folder for it, and a new roster for everybody."""
    folder = add_device(root, device, neighbour, host, days=whole(days, "days", 1), settled=_number(settled))
    config = read_device(folder)
    print(f"added {device} at {config.endpoints[device]}: copy {folder} there; {_hand_out(root)}")


def revoke(
    root: Root,
    device: Device,
    certificate: Annotated[
        bool, typer.Option("--certificate", help="Only its certificates so far: it stays, and gets a new one.")
    ] = False,
    days: Days = "365",
    settled: Settled = None,
    forget: Annotated[
        bool,
        typer.Option("--forget", help="All devices that were taken out are off for good.", rich_help_panel=MESH),
    ] = False,
) -> None:
    """Take a device out of the mesh, or only the certificates it has had: they are no longer let in.

    The name of a device that was taken out is never used again: add it under a new one, if it comes back. With
    --certificate it keeps its name; a key that was stolen from it is of no use any more.
    """
    if certificate:
        identity = reissue_device(root, device, days=whole(days, "days", 1), settled=_number(settled))
        first = "copy device.pem and device.key to its machine first, or it is shut out too; then"
        print(f"revoked the certificates of {device} before {identity.name}; {first} {_hand_out(root)}")
        return
    serial = revoke_device(root, device, settled=_number(settled), forget=forget)
    which = f" (certificate {serial})" if serial else ""
    print(f"revoked {device}{which}; {_hand_out(root)}")


def renew(root: Root, device: Device, days: Days = "365") -> None:
    """Make a new key and certificate for a device, before the old one expires.

    The old one stays good until then. If its key was stolen, use `mesh revoke --certificate` instead. A device that
    runs takes the new files up by itself.
    """
    before = current_roster(root)
    identity = renew_device(root, device, days=whole(days, "days", 1))
    more = "" if current_roster(root) == before else f"; {_hand_out(root)}"
    print(f"renewed {device} until {identity.not_after:%Y-%m-%d}; copy device.pem and device.key to its machine{more}")


def hand(
    roster: Annotated[Path, typer.Argument(metavar="ROSTER", help="A roster.json, as the folder of a mesh has it.")],
    to: Annotated[
        str, typer.Argument(metavar="FOLDER|ADDRESS", help="A device's folder, its socket, or 127.0.0.1:PORT.")
    ],
) -> None:
    """Hand a newer roster to a device: if it runs, it passes it on to the others by itself.

    To a device that does not run, in a folder, it is copied once it is found to be good.
    """
    try:
        body = roster.read_bytes()
    except OSError as problem:
        raise ValueError(f"{roster}: cannot read the roster: {problem.strerror}") from None
    folder = Path(to)
    try:
        print(Client(to).hand(body))
    except NodeError as problem:
        if problem.status is not None or not (folder / FILE).is_file():
            raise
        print(hand_to_folder(body, folder, read_device(folder)))


def put_scores(
    scores: Annotated[
        str, typer.Argument(metavar="SCORES", help="A file with the scores of this device; - reads CSV from stdin.")
    ],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The device's folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Replace the scores of a device in one step: a device that runs never sees half a file.

    The file is checked first, and copied to where device.toml says. A device that runs notices it within 3 s and asks
    the others for a new run if the scores have changed. A private device asks for nothing: they count from the next
    run on.
    """
    config = read_device(folder)
    found = own_scores.put_scores(config, scores)
    if config.is_private and len(found) and found.epochs is None and (last := Epochs(config).last()) > FIRST:
        console.note(
            f"{scores} has no column 'epoch', so that all its scores are of epoch {FIRST}. Epoch {last} has closed, "
            "and no later run counts them; add the epoch of each score"
        )
    if found.problem:
        console.note(found.problem)
    try:
        Client(folder).status()
        running = True
    except NodeError:
        running = False
    target = config.path("scores")
    if as_json:
        facts = {"device": config.name, "file": str(target), "scores": len(found), "digest": found.digest}
        print(json.dumps({**facts, "running": running}))
        return
    when = "the device runs and uses them within 3 s" if running else "the device uses them when it starts"
    if config.is_private:
        when = "they count from the next run on"
    print(f"put {len(found):,} scores of {config.name} into {target} (digest {found.digest}); {when}")


def _hand_out(root: Path) -> str:
    """What to do with a new roster."""
    return f"hand roster {current_roster(root)} to any device that runs: conformesh mesh hand {root / ROSTER} FOLDER"


def _number(settled: str | None) -> int | None:
    return None if settled is None else whole(settled, "settled", 1)


def check(
    folders: Annotated[list[Path], typer.Argument(metavar="FOLDER...", help="Folders of devices, or of a whole mesh.")],
    offline: Annotated[bool, typer.Option("--offline", help="Do not try to reach neighbours.")] = False,
    running: Annotated[bool, typer.Option("--running", help="A neighbour that does not listen is an error.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Check folders before their devices start: files, certificates, scores, agreement, and who answers.

    Warnings are shown and pass; an error ends with exit code 1. Neighbours are tried from this machine.
    """
    chosen = [one for folder in folders for one in devices_in(folder)]
    found = [finding for folder in folders for finding in examine_authority(folder)]
    found += [finding for folder in chosen for finding in examine_folder(folder)]
    unreadable = {finding.device for finding in found if finding.code == "unreadable"}
    readable = [folder for folder in chosen if folder.name not in unreadable]
    differing = compare_agreements(readable)
    found += [
        Problem(few(names), f"agree on {field}", "error", value)
        for field, values in differing.items()
        for value, names in values.items()
    ] + compare_maps(readable)
    if not offline:
        reached = [finding for folder in readable for finding in reach_neighbours(read_device(folder))]
        found += [replace(f, level="error") if running and f.code == "silent" else f for f in reached]
    good = all(finding.level != "error" for finding in found)
    if as_json:
        print(json.dumps({"ok": good, "findings": [asdict(finding) for finding in found], "differences": differing}))
    else:
        rows = [(finding.device, finding.what, finding.level, finding.text) for finding in found]
        console.print_table(("device", "what", "is", "because"), rows, group_by="device")
    if not good:
        raise typer.Exit(1)


def devices_in(folder: Path) -> Sequence[Path]:
    """A device's folder itself, or those inside the folder of a mesh."""
    if (folder / FILE).exists():
        return [folder]
    return sorted(path.parent for path in folder.glob(f"*/{FILE}")) or [folder]


def _network(
    devices: str | None, scores: str | None, topology: str | None, pairs: list[str], graph: Path | None, seed: int
) -> Network:
    if devices is not None and (scores is not None or graph is not None):
        raise ValueError(f"--devices {devices} counts devices that --scores or --graph name already; leave it out")
    if scores is not None:
        return chosen_network(read_scores(scores), topology, pairs, graph, seed)
    if devices is None and graph is None:
        raise ValueError("a mesh needs --devices to count its devices, or --scores or --graph to name them")
    names = () if devices is None else tuple(map(str, range(whole(devices, "devices", 1))))
    return chosen_network(ScoreFile(names, (), "--devices"), topology, pairs, graph, seed)


def _digest(model: Path) -> str:
    with model.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
