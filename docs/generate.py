"""Regenerate what the documentation says about the code: tables, options, help pages and the map of the paper.

    python docs/generate.py            rewrite the parts that are stale
    python docs/generate.py --check    change nothing; exit 1 and name the pages that are stale

A page asks for a part with ``<!-- generated: name -->``; what stands between that line and ``<!-- end -->`` is
replaced. Parts are functions in `PARTS`; words after the name are their arguments (``options h-dcp``).
"""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import paper_to_code
import results_parts
from numpy.typing import NDArray
from references import entries, page_of

from conformesh import METHODS, TOPOLOGIES, Centres, Network, Result, calibrate, control
from conformesh.engines import ENGINES
from conformesh.graph.weights import WEIGHTS
from conformesh.kernels.family_wise import TESTINGS
from conformesh.lab.datasets.partition import PARTITIONS, partition
from conformesh.methods import exposure_of_method, exposure_of_result
from conformesh.pipeline.solver import REFUSALS
from conformesh.privacy.exposure import Exposure
from conformesh.privacy.gossip_attack import observable_devices
from conformesh.protocols.aggregate import AGGREGATORS, CannotAggregate
from conformesh.scores import SCORES
from conformesh.scores.adapt import ADAPTATIONS
from conformesh.scores.losses import LOSSES, StepLosses

DOCS = Path(__file__).parent
ROOT = DOCS.parent
MARKED = re.compile(r"(<!-- generated: ([^>]+?) -->\n).*?(<!-- end -->)", re.DOTALL)
PAPER_GRAPHS = ("chain", "cycle", "star", "torus", "complete")
WIDTH = 100  # columns of the help pages


def pages() -> list[Path]:
    """Return every page that may ask for generated parts."""
    return [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


def regenerated(text: str) -> str:
    """Return a page with its generated parts made anew."""

    def part(found: re.Match[str]) -> str:
        name, *arguments = found[2].split()
        if name not in PARTS:
            raise ValueError(f"no generated part is called {name!r}; known: {', '.join(PARTS)}")
        return f"{found[1]}\n{PARTS[name](*arguments).strip()}\n\n{found[3]}"

    return MARKED.sub(part, text)


def stale() -> dict[Path, str]:
    """Return the pages whose generated parts have changed, with their new text."""
    before = {page: page.read_text(encoding="utf-8") for page in pages() if page.exists()}
    after = {page: regenerated(text) for page, text in before.items() if MARKED.search(text)}
    for page, write in FILES.items():
        before[page] = page.read_text(encoding="utf-8") if page.exists() else ""
        after[page] = write()
    return {page: text for page, text in after.items() if text != before[page]}


def main(arguments: Sequence[str]) -> int:
    """Rewrite, or with ``--check`` complain."""
    changed = stale()
    for page, text in changed.items():
        if "--check" not in arguments:
            page.write_text(text, encoding="utf-8")
        print(f"{'stale' if '--check' in arguments else 'rewritten'}: {page.relative_to(ROOT)}")
    if changed and "--check" in arguments:
        print("run: python docs/generate.py")
        return 1
    return 0


# --- tables -----------------------------------------------------------------------------------------------------------


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; a bar inside a cell is escaped."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines)


def code(words: object) -> str:
    """Return words set as code; nothing stays nothing."""
    return f"`{words}`" if str(words) else ""


def methods() -> str:
    """All methods side by side; what each assumes is taken from a certificate it gave."""
    rows = []
    for name, method in METHODS.items():
        assumed = example(name).certificate.assumption.replace("*", r"\*") or "—"
        paper = f"[{method.description.paper}]" if method.description.paper else "—"
        rows.append(
            (
                code(name),
                method.description.guarantee,
                method.description.needs,
                method.description.sends,
                assumed,
                paper,
            )
        )
    return table(("method", "guarantee", "a device must reach", "it sends", "the guarantee assumes", "paper"), rows)


def certificates() -> str:
    """Every method on one example: threshold, certificate and cost."""
    rows = []
    for name in METHODS:
        result = example(name)
        certificate, cost = result.certificate, result.cost
        rows.append(
            (
                code(name),
                f"{result.threshold:.4f}",
                certificate.kind,
                _rank(certificate.required_rank),
                _rank(certificate.counted_rank),
                "—" if certificate.epsilon is None else f"{certificate.epsilon:.3g}",
                f"{cost.rounds:,}",
                f"{cost.numbers_per_device:,.10g}",
                f"{cost.bits_per_device:,.10g}",
            )
        )
    columns = ("method", "threshold", "certificate", "required rank", "counted rank", "epsilon", "rounds")
    return table((*columns, "numbers sent per device", "bits"), rows)


# What can be asked for together: the keywords that ask for it, see `_asked`.
COMBINED: dict[str, tuple[str, ...]] = {
    "groups": ("groups",),
    "atoms, max": ("groups", "max"),
    "seq, regression": ("groups", "seq"),
    "two sides": ("sides",),
    "weights": ("weights",),
    "class weights": ("class weights",),
    "centres": ("centres",),
    "losses": ("losses",),
    "PAC": ("pac",),
    "ghost rank": ("ghost",),
}


def combination_matrix() -> str:
    """Which pairs of guarantees work with `e-dcp`: each pair is asked for, of a few scores."""
    names = [*COMBINED]
    rows = []
    for i, name in enumerate(names[1:], 1):
        rows.append(
            (
                name,
                *(_answer("e-dcp", COMBINED[name], COMBINED[other]) for other in names[:i]),
                *[""] * (len(names) - 1 - i),
            )
        )
    return table(("with `e-dcp`", *names[:-1]), rows)


def method_matrix() -> str:
    """Which guarantees every method has: each is asked for, of a few scores."""
    rows = [(code(name), *(_answer(name, asked) for asked in COMBINED.values())) for name in METHODS]
    return table(("method", *COMBINED), rows)


def _answer(method: str, *wanted: tuple[str, ...]) -> str:
    """Return whether a combination works; what `e-dcp` refuses must stand in `solver.REFUSALS`."""
    one, *others = wanted
    if others and {*one} & {*others[0]}:
        return "—"  # two ways to ask for the same thing
    if len({*one, *(word for other in others for word in other)} & {"weights", "class weights"}) > 1:
        return "—"
    asked = {word for words in wanted for word in words}
    if {"losses", "class weights"} <= asked:
        return "no"  # control has no such argument
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _ask(method, asked)
    except (TypeError, ValueError) as problem:
        if method == "e-dcp" and not any(one.reason in str(problem) for one in REFUSALS):
            raise ValueError(f"no refusal says that {asked} is impossible: {problem}") from problem
        return "no"
    return "yes"


def _ask(method: str, asked: set[str]) -> Result:
    """Ask for some guarantees together, on three devices with thirty examples each."""
    rng = np.random.default_rng(0)
    names = "abc"
    keywords: dict[str, Any] = {"method": method}
    if "groups" in asked:
        kinds = {name: rng.choice(["f", "m"], 30) for name in names}
        keywords["groups"] = kinds
        if rule := asked & {"max", "seq"}:
            keywords["groups"] = {
                name: [[kind, "adult"] if i % 2 else [kind] for i, kind in enumerate(own)]
                for name, own in kinds.items()
            }
            keywords["group_rule"] = rule.pop()
    if "weights" in asked:
        keywords |= {"weight": {name: rng.uniform(0.5, 1, 30) for name in names}, "weight_bound": 1.0}
    if "class weights" in asked:
        keywords |= {
            "class_weights": {"x": 1.0, "y": 2.0},
            "labels": {name: rng.choice(["x", "y"], 30) for name in names},
        }
    if "centres" in asked:
        keywords |= {
            "inputs": {name: rng.random((30, 1)) for name in names},
            "centres": Centres.at([[0.2], [0.8]], 0.3),
        }
    if "pac" in asked:
        keywords["pac_confidence"] = 0.9
    if "ghost" in asked:
        keywords |= {"rank_rule": "ghost", "mixture": "paper"}
    if "losses" in asked:
        if "pac" in asked or "sides" in asked:
            raise ValueError(
                next(
                    one.reason
                    for one in REFUSALS
                    if one.name == ("pac_confidence x losses" if "pac" in asked else "sides x losses")
                )
            )
        steps = {
            name: StepLosses.on_grid(np.linspace(0, 1, 5), np.linspace(1, 0, 5) * rng.random((30, 1)), bound=1)
            for name in names
        }
        return control(steps, "complete", 0.3, **keywords)
    shape = (30, 2) if "sides" in asked else 30
    if "sides" in asked:
        keywords["symmetric"] = False
    return calibrate({name: rng.random(shape) for name in names}, "complete", 0.3, **keywords)


def refused_combinations() -> str:
    """Every combination that `solver.REFUSALS` refuses, with its reason and what to do instead."""
    rows = [(one.name.replace(" x ", " × "), one.reason, one.remedy) for one in REFUSALS]
    return table(("combination", "why it is refused", "instead"), rows)


@cache
def example(method: str) -> Result:
    """Return the run behind the tables: 20 devices on a torus, 50 uniform scores each, alpha = 0.1."""
    return calibrate(_uniform(20), Network.torus(5, 4), 0.1, method)


def _uniform(devices: int) -> list[NDArray[np.float64]]:
    rng = np.random.default_rng(0)
    return [rng.random(50) for _ in range(devices)]


def _rank(rank: int | tuple[int, ...] | None) -> str:
    if isinstance(rank, tuple):
        low, high = min(rank), max(rank)
        return f"{low}, each device" if low == high else f"{low} to {high}, by device"
    return "—" if rank is None else str(rank)


def reveals() -> str:
    """What every method reveals by default, and of how many devices one curious one has numbers of their own."""
    each: list[tuple[str, str, dict[str, Any]]] = [(name, code(name), {}) for name in METHODS if METHODS[name].reveals]
    each += [(name, f"{code(name)}, adapted scores", {"adapt": "prior"}) for name in ("e-dcp", "p-dcp")]
    each.append(("e-dcp", "adapted scores with mixture `own`", {"adapt": "prior", "mixture": "own"}))
    each.append(("e-dcp", f"{code('e-dcp')}, mixture `any`", {"mixture": "any"}))
    each.append(("e-dcp", f"{code('e-dcp')}, `mixture_bound`", {"mixture_bound": 2}))
    ways: list[tuple[str, Callable[..., Exposure]]] = [
        (written, partial(exposure_of_method, name, **given)) for name, written, given in each
    ]
    ways.append(("`control` with `monotone=False`", _exposure_of_lambda_tests))
    network, rows = Network.torus(5, 4), []
    for written, exposure in ways:
        found = [row for row in exposure(network, coalition=0).rows if row.what != "its number of scores"]
        said = [
            "; ".join(row.what.partition(" (on a mesh")[0] for row in found if row.to == to)
            for to in ("neighbours", "everybody", "a server")
        ]
        bare = [len(exposure(Network.of(graph, 20), coalition=1).bare) for graph in ("chain", "star", "torus")]
        rows.append((written, *(words or "—" for words in said), *map(str, bare)))
    columns = (
        "method",
        "neighbours learn",
        "everybody learns",
        "a server learns, on a mesh everybody",
        "chain",
        "star",
        "torus",
    )
    return table(columns, rows)


def _exposure_of_lambda_tests(network: Network, coalition: int) -> Exposure:
    """Return what tests of one lambda reveal."""
    losses = [np.zeros((50, 1))] * network.devices
    found = control(losses, network, 0.5, monotone=False, pac_confidence=0.9, grid=[0.5])
    return exposure_of_result(found, network, coalition=coalition)


def observed() -> str:
    """How many of 20 histograms follow from what one device hears of gossip, over all places to listen from."""
    rows = []
    for name, topology in TOPOLOGIES.items():
        networks = [Network.of(name, 20, seed=seed) for seed in range(3 if topology.random else 1)]
        found = [observable_devices(network, [row]) for network in networks for row in range(20)]
        seen, rounds = [len(devices) for devices, _ in found], [used for _, used in found]
        cells = (
            f"{low}" if low == high else f"{low} to {high}" for low, high in ((min(v), max(v)) for v in (seen, rounds))
        )
        rows.append((code(name), "3 draws" if topology.random else "", *cells))
    return table(("topology", "", "of 20 histograms", "rounds needed"), rows)


def options(name: str) -> str:
    """The options of one method."""
    method = METHODS[name]
    rows = []
    for f in fields(method.options):
        if f.name in method.option_names():
            words = "; ".join([f.metadata["help"].replace("*", r"\*"), *_choices(f.metadata)])
            rows.append((code(f.name), code(_type(str(f.type))), code(_default(f.default)), words))
    return table(("option", "type", "default", "meaning"), rows) if rows else f"`{name}` has no options."


def _choices(metadata: Mapping[str, Any]) -> list[str]:
    """The names of the table that an option chooses from, if it does."""
    return [" or ".join(code(word) for word in metadata["choices"]())] if "choices" in metadata else []


def _type(annotation: str) -> str:
    """The annotation as written, with the words of a Literal spelled out, and without bars, which end a cell."""
    spelled = re.sub(r"Literal\[(.*?)\]", lambda found: found[1].replace(", ", " or "), annotation)
    return spelled.replace(" | ", " or ")


def _default(value: Any) -> str:
    return "" if value is MISSING else f"{value:g}" if isinstance(value, float) else repr(value)


def other_methods() -> str:
    """A section for each method that the page of methods does not describe in words of its own."""
    text = MARKED.sub("", (DOCS / "methods.md").read_text(encoding="utf-8"))
    sections = []
    for name, method in METHODS.items():
        if f"\n## {name}\n" not in text:
            contract = sys.modules[method.protocol.__module__].__doc__ or ""
            sections.append(
                f"## {name}\n\n{method.description.summary}.\n\n```text\n{contract.strip()}\n```\n\n{options(name)}"
            )
    return "\n\n".join(sections)


def topologies() -> str:
    """The named graphs, with what makes them fast or slow at 20 devices."""
    rows = []
    for name, topology in TOPOLOGIES.items():
        network = Network.of(name, 20)
        chosen = ", ".join(f"`{option}`: {words}" for option, words in topology.options.items())
        rows.append(
            (
                code(name),
                topology.summary,
                "yes" if topology.random else "no",
                chosen or "—",
                str(network.edges),
                str(network.diameter),
                f"{WEIGHTS['best-constant'](network).rate:.4f}",
                f"{_rounds_to_count(network):,}",
            )
        )
    columns = ("topology", "what it is", "random", "options", "edges", "diameter", "rate", "rounds of h-dcp")
    return table(columns, rows)


def _rounds_to_count(network: Network) -> int:
    scores = _uniform(network.devices)
    return calibrate(scores, network, 0.1, "h-dcp", range=(0.0, 1.0), bins=100).cost.rounds


def scores() -> str:
    """The nonconformity scores."""
    rows = []
    for name, score in SCORES.items():
        chosen = ", ".join(f"`{f.name}` = {_default(f.default)}" for f in fields(score))
        rows.append((code(name), code(f"scores.{score.__name__}"), score.task, score.summary, chosen or "—"))
    return table(("score", "class", "task", "what it measures", "options"), rows)


def adaptations() -> str:
    """The ways in which scores adapt to the rows of a device."""
    rows = []
    for name, kind in ADAPTATIONS.items():
        chosen = ", ".join(f"`{f.name}` = {_default(f.default)}" for f in fields(kind))  # type: ignore[arg-type]
        task = kind.task if isinstance(kind.task, str) else "both"
        rows.append((code(name), code(f"adapt.{kind.__name__}"), task, kind.summary, chosen))
    return table(("adaptation", "class", "task", "what it does", "options"), rows)


def losses() -> str:
    """The losses that can be controlled."""
    names = {name: ", ".join(code(each.name) for each in fields(loss)) or "—" for name, loss in LOSSES.items()}
    rows = [(code(loss.__name__), code(name), loss.summary, names[name]) for name, loss in LOSSES.items()]
    return table(("loss", "name", "what it is", "options"), rows)


def testings() -> str:
    """How the lambdas of a grid may be tested."""
    return table(("`testing=`", "how"), [(code(name), testing.summary) for name, testing in TESTINGS.items()])


def weights() -> str:
    """The consensus weights, with the factor by which a round shrinks disagreement on the paper's graphs."""
    rows = []
    for name, build in WEIGHTS.items():
        rates = [f"{build(Network.of(graph, 20)).rate:.4f}" for graph in PAPER_GRAPHS]
        rows.append((code(name), _first_line(build), *rates))
    return table(("weights", "what they are", *PAPER_GRAPHS), rows)


def aggregators() -> str:
    """The ways to add up over all devices, with what a run of E-DCP costs by each on the paper's graphs."""
    rows = []
    for name, aggregator in AGGREGATORS.items():
        sent = [_sums_on(Network.of(graph, 20), name) for graph in PAPER_GRAPHS]
        rows.append((code(name), aggregator.summary, *sent))
    return table(("aggregator", "what it does", *PAPER_GRAPHS), rows)


def _sums_on(network: Network, aggregate: str) -> str:
    try:
        cost = calibrate(_uniform(network.devices), network, 0.1, "e-dcp", aggregate=aggregate).cost
    except CannotAggregate:
        return "—"
    return f"{cost.rounds:,} / {cost.numbers_per_device:,.4g}"


def engines() -> str:
    """What drives the devices."""
    rows = [
        (
            code(name),
            driver.summary,
            code(f"{driver.start} conformesh calibrate SCORES --engine {name}") if driver.start else "—",
            code(f"pip install 'conformesh[{driver.extra}]'") if driver.extra else "—",
        )
        for name, driver in ENGINES.items()
    ]
    return table(("engine", "what it is", "started by", "needs"), rows)


def partitions() -> str:
    """The ways to spread rows over devices, with what a device ends up with."""
    labels = np.repeat(np.arange(100), 100)
    rows = []
    for name, way in PARTITIONS.items():
        home = partition(labels, 20, name)
        held = [labels[home == device] for device in range(20)]
        sizes = [_span([len(own) for own in held]), _span([len(np.unique(own)) for own in held])]
        rows.append((code(name), way.summary, *sizes))
    return table(("partition", "who holds what", "rows", "classes"), rows)


def _span(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _first_line(thing: Callable[..., Any]) -> str:
    line = (thing.__doc__ or "").strip().split("\n")[0].removeprefix("Return ").rstrip(".")
    return re.sub(r":math:`([^`]*)`", lambda found: f"`{re.sub(r'[{}]', '', found[1])}`", line.replace("``", "`"))


# --- help, skeletons, references --------------------------------------------------------------------------------------

SHOW_HELP = """
import sys
from conformesh.cli import app
for command in [[], *(name.split() for name in sys.argv[1:])]:
    print("\\0", end="")
    try:
        app([*command, "--help"], terminal_width=WIDTH)
    except SystemExit:
        pass
""".replace("WIDTH", str(WIDTH))


def command_line() -> str:
    """The help page of every command, as a pipe sees it: plain text of a fixed width."""
    from conformesh.cli import COMMANDS, SUBCOMMANDS

    names = [word for name in COMMANDS for word in (name, *(f"{name} {sub}" for sub in SUBCOMMANDS.get(name, ())))]
    plain = {key: value for key, value in os.environ.items() if key not in ("FORCE_COLOR", "CLICOLOR_FORCE")}
    plain |= {"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": str(WIDTH), "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-c", SHOW_HELP, *names]
    shown = subprocess.run(command, env=plain, capture_output=True, text=True, check=True, encoding="utf-8").stdout
    helps = [page.rstrip() for page in shown.split("\0")[1:]]
    titles = ["conformesh", *(f"conformesh {name}" for name in names)]
    return "\n\n".join(f"## {title}\n\n```text\n{page}\n```" for title, page in zip(titles, helps, strict=True))


def skeleton(name: str) -> str:
    """A skeleton, whole."""
    return f"```python\n{(DOCS / 'skeletons' / f'{name}.py').read_text(encoding='utf-8').strip()}\n```"


def modules(folder: str, *first: str) -> str:
    """A line for the API reference of every module in a folder, some `first`; "." is what no other page shows."""
    package = ROOT / "src" / "conformesh"
    if folder == ".":
        shown = "\n".join(page.read_text(encoding="utf-8") for page in (DOCS / "reference").glob("*.md"))
        shown = MARKED.sub("", shown)
        names = [f"conformesh.{path.stem}" for path in sorted(package.glob("[!_]*.py"))]
        names = [name for name in names if not re.search(rf"^::: {name}(\.|$)", shown, re.MULTILINE)]
    else:
        paths = sorted((package / folder).rglob("[!_]*.py"), key=lambda path: (_place(path.stem, first), path))
        names = [".".join(path.relative_to(package.parent).with_suffix("").parts) for path in paths]
    return "\n\n".join(f"::: {name}" for name in names)


def _place(name: str, first: Sequence[str]) -> int:
    return first.index(name) if name in first else len(first)


def references() -> str:
    """The references page, from the BibTeX file."""
    return page_of(entries((DOCS / "references.bib").read_text(encoding="utf-8")))


def sweep_keys() -> str:
    """Every key of a sweep's configuration, table by table."""
    from msgspec import NODEFAULT

    from conformesh.lab.sweeps.config import RECORDABLE
    from conformesh.lab.sweeps.schema import SCORE_SOURCES, MethodTable, NetworkTable, SweepFile, describe_keys

    tables = {"The whole": SweepFile, "`[[networks]]`": NetworkTable, "`[[methods]]`": MethodTable}
    tables |= {f'`[scores]`, source = "{name}"': keys for name, keys in SCORE_SOURCES.items()}
    parts = []
    for title, keys in tables.items():
        rows = [
            (code(name), meaning, "needed" if default is NODEFAULT else _left_out(default))
            for name, meaning, default in describe_keys(keys)
        ]
        parts.append(f"### {title}\n\n" + table(("key", "what it says", "by default"), rows))
    recorded = [(code(name), meaning) for name, meaning in RECORDABLE.items()]
    return "\n\n".join([*parts, "### `record`\n\n" + table(("word", "what is recorded"), recorded)])


def _left_out(value: Any) -> str:
    if value is None or value in ({}, ()):
        return "—"
    if isinstance(value, bool):
        return code("true" if value else "false")
    return (
        "all"
        if isinstance(value, tuple) and len(value) > 2
        else code(list(value) if isinstance(value, tuple) else value)
    )


def metrics() -> str:
    """Every metric of a node."""
    from conformesh.mesh.http.metrics import METRICS

    rows = [
        (code(one.exposed), one.kind, ", ".join(map(code, one.labels)) or "—", one.words.rstrip(".")) for one in METRICS
    ]
    return table(("metric", "kind", "labels", "what it says"), rows)


def failures() -> str:
    """Why a run may fail, in one word each."""
    from conformesh.peer.settings import FAILURES

    return table(("reason", "what it stands for"), [(code(name), words) for name, words in FAILURES.items()])


def routes() -> str:
    """What a node answers."""
    from conformesh.mesh.http.openapi import OPERATIONS
    from conformesh.mesh.http.paths import VERBS

    rows = [
        (code(f"{verb} {path}"), OPERATIONS[path].summary, ", ".join(map(str, OPERATIONS[path].answers)))
        for path, verb in VERBS.items()
    ]
    return table(("request", "what it answers", "with status"), rows)


def openapi() -> str:
    """The description of a node's local service, as a node serves it."""
    from conformesh.mesh.http.openapi import describe_service

    return json.dumps(describe_service(), indent=1) + "\n"


def measured(name: str) -> str:
    """What a script of benchmarks/promises wrote."""
    header, *rows = csv.reader((ROOT / "benchmarks" / "promises" / f"{name}.csv").read_text().splitlines())
    return table([column.replace("_", " ") for column in header], rows)


def sites() -> str:
    """What benchmarks/promises/sites.py measured, with its heading; nothing before it has run."""
    path = ROOT / "benchmarks" / "promises" / "sites.csv"
    if not path.exists():
        return ""
    rules = {
        "one threshold": "one threshold",
        "adapted": "adapted",
        "adapted, even": 'adapted, `adapt="even"`',
        "own threshold": 'own threshold, `mixture="own"`',
        "adapted, own": 'adapted, `mixture="own"`',
        "oracle": "oracle",
    }
    found: dict[str, dict[str, str]] = {}
    for line in csv.DictReader(path.read_text().splitlines()):
        if line["rule"] in rules:
            coverage, worst, size = (float(line[name]) for name in ("coverage", "worst", "size"))
            found.setdefault(line["data"], {})[line["rule"]] = f"{coverage:.3f} / {worst:.3f} / {size:.3g}"
    rows = [[data, *(cells.get(rule, "—") for rule in rules)] for data, cells in found.items()]
    words = (
        "Each cell has three means over the draws of `benchmarks/promises/sites.py`, with default options: coverage / "
        "coverage of the worst site / size of sets or width of intervals. The oracle is the one threshold that covers "
        "1 − α of the test rows themselves."
    )
    return f"## Measured\n\n{words}\n\n{table(('data', *rules.values()), rows)}"


def schedules() -> str:
    """What benchmarks/schedules.py measured on twenty devices, by preference; before, all searches went by stages."""
    lines = [*csv.DictReader((ROOT / "benchmarks" / "schedules.csv").read_text().splitlines())]
    before = {"chain": "248 / 105 / 4531", "torus": "93 / 28 / 1112"}
    rows = [["by stages only, as it was", *(before.get(name, "") for name in PAPER_GRAPHS)]]
    kinds = {"logits": "float32 scores", "confidences": "confidences", "float64": "float64 scores"}
    found: dict[tuple[str, str], list[str]] = {}
    for line in lines:
        if line["data"] in kinds:
            rounds, numbers, bits = (float(line[figure]) for figure in ("rounds", "numbers", "bits"))
            found.setdefault((line["data"], line["way"]), []).append(f"{rounds:g} / {numbers:.1f} / {bits:,.0f}")
    rows += [[f"`{way.replace(' ', '=')}`, {kinds[data]}", *cells] for (data, way), cells in found.items()]
    return table(("rounds / numbers / bits", *PAPER_GRAPHS), rows)


FILES: dict[Path, Callable[[], str]] = {DOCS / "openapi.json": openapi}  # written whole
PARTS: dict[str, Callable[..., str]] = {
    "methods": methods,
    "certificates": certificates,
    "refused-combinations": refused_combinations,
    "combination-matrix": combination_matrix,
    "method-matrix": method_matrix,
    "options": options,
    "other-methods": other_methods,
    "topologies": topologies,
    "scores": scores,
    "adaptations": adaptations,
    "losses": losses,
    "testings": testings,
    "weights": weights,
    "aggregators": aggregators,
    "engines": engines,
    "partitions": partitions,
    "command-line": command_line,
    "skeleton": skeleton,
    "modules": modules,
    "observed": observed,
    "reveals": reveals,
    "references": references,
    "sweep-keys": sweep_keys,
    "metrics": metrics,
    "failures": failures,
    "routes": routes,
    "paper-to-code": lambda: paper_to_code.page(ROOT),
    "experiments": lambda: table(*results_parts.experiments()),
    "verdicts": lambda: table(*results_parts.verdicts()),
    "findings": lambda *words: table(*results_parts.findings(*words)),
    "reasons": results_parts.reasons,
    "results-at": lambda *words: table(*results_parts.at(*words)),
    "measured": measured,
    "schedules": schedules,
    "sites": sites,
    "provenance": lambda: table(*results_parts.provenance()),
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
