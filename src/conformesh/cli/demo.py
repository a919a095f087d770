"""``conformesh demo``: real images, devices that differ, every method on a torus and on a chain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.cli import console, options
from conformesh.cli.command import Option, WholeNumber, command
from conformesh.cli.options import GuaranteeOptions
from conformesh.common.progress import Progress
from conformesh.common.quantities import format_bits
from conformesh.graph.network import Network
from conformesh.kernels.proportions import wilson_interval
from conformesh.kernels.ranks import exact_alpha
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.lab.datasets.digits import TRAINING_IMAGES, Digits, DigitsSplit, load_digits_on_devices, split_digits
from conformesh.methods import CONNECTIONS, METHODS
from conformesh.pipeline.solver import CalibrationBatch, solve_draws
from conformesh.plots.pictures import Agreement, MethodMeasurement, draw_agreement, draw_methods
from conformesh.protocols.block import Block
from conformesh.protocols.messages import Message, Sum
from conformesh.results.certificate import Cost
from conformesh.scores import LAC

_NETWORKS = ("torus", "chain")
_SCORE = LAC()


@dataclass(frozen=True)
class _Line(MethodMeasurement):
    """One method on one network, over all splits.

    Attributes
    ----------
    assumption
        What the guarantee rests on, in words.
    thresholds
        Smallest and largest threshold of a device, each device's own averaged over the splits.
    rounds, bits
        The cost of calibrating the first split; bits for each device.
    """

    assumption: str
    thresholds: tuple[float, float]
    rounds: int
    bits: float


@command(
    options.out_option("Where the pictures go.", "DIR", default="conformesh-demo"),
    options.devices_option("How many devices share the images: 20, with --mesh 8."),
    options.guarantee_options("alpha"),
    Option("--seed <int>", "Seed of everything that is drawn.", type=WholeNumber(), default=0),
    Option("--splits <int>", "Random calibration/test splits to average over.", type=WholeNumber(1), default=40),
    options.json_option("Print one JSON object instead of the table."),
    options.picture_option("Write network.png and methods.png."),
    Option("--mesh", "Instead: a real mesh on this machine, one process per device."),
    Option("--keep", "With --mesh, keep its folder, private keys and all."),
)
def demo(
    out: Path,
    devices: int | None,
    guarantee: GuaranteeOptions,
    seed: int,
    splits: int,
    as_json: bool,
    picture: bool,
    mesh: bool,
    keep: bool,
) -> None:
    """Run every method on handwritten digits that are spread unevenly over devices, on a torus and on a chain.

    A classifier is trained on the spot; each device calibrates with its own images and is tested on others of its own.
    Coverage and set size are averages over random splits into the two. With --mesh the devices are processes that talk
    over encrypted links, and what they agree on is compared with the simulator.
    """
    level = exact_alpha(guarantee.one_alpha)
    count = devices or (8 if mesh else 20)
    if mesh:
        _run_mesh(out, Network.of("torus", count), guarantee.one_alpha, seed, keep, as_json)
        return
    networks = [Network.of(name, count, seed=seed) for name in _NETWORKS]
    steps = len(METHODS) * len(networks) + 1 + 2 * picture
    with Progress("training the classifier", steps) as progress:
        digits = load_digits_on_devices(networks[0].devices, seed)
        drawn = [split_digits(digits, seed, number) for number in range(splits)]
        samples = WeightedScores.of_trials([_scores(digits, rows) for rows in one.calibration] for one in drawn)
        first = WeightedScores.of([_scores(digits, rows) for rows in drawn[0].calibration])
        progress.step()
        lines = []
        for network in networks:
            for method in sorted(METHODS, key=lambda name: CONNECTIONS.index(METHODS[name].description.needs)):
                progress.what = f"{method} on {network.name}"
                batch = solve_draws(samples, network, (level,), method)
                cost = solve_draws(first, network, (level,), method).cost  # stages of a search differ by split
                lines.append(_measure(method, network, batch, cost, digits, drawn))
                progress.step()
        progress.what = "drawing"
        pictures = _draw(out, digits, drawn[0], networks, lines, float(level), progress.step) if picture else []
    facts = {
        "alpha": float(level),
        "seed": seed,
        "splits": splits,
        "devices": samples.devices,
        "sizes": samples.sizes[:, 0].tolist(),
        "accuracy": digits.accuracy,
        "pictures": [str(path) for path in pictures],
    }
    results = [asdict(line) for line in lines]
    console.show_result({**facts, "results": results}, as_json, lambda: _report(facts, lines))


def _run_mesh(out: Path, network: Network, alpha: str, seed: int, keep: bool, as_json: bool) -> None:
    """Hand the first split's scores to a mesh of processes."""
    from conformesh.cli.demo_mesh import require_mesh_extra, run_demo_mesh

    require_mesh_extra()
    with Progress("training the classifier"):
        digits = load_digits_on_devices(network.devices, seed)
        scores = [_scores(digits, rows) for rows in split_digits(digits, seed, 0).calibration]
    run_demo_mesh(out, network, scores, alpha, _SCORE.name, keep=keep, as_json=as_json)


def _scores(digits: Digits, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    return _SCORE(digits.probabilities[rows], digits.labels[rows])


def _measure(
    method: str, network: Network, batch: CalibrationBatch, cost: Cost, digits: Digits, drawn: Sequence[DigitsSplit]
) -> _Line:
    """Form the sets of all test rows of all splits, each with the threshold of its own device, and count."""
    coverage, sizes = [], []
    for trial, one in enumerate(drawn):
        threshold = batch.outcome.thresholds[one.device, trial, 0]
        sets = _SCORE.sets(digits.probabilities[one.test], threshold)
        coverage.append(sets[np.arange(len(one.test)), digits.labels[one.test]].mean())
        sizes.append(sets.sum(axis=1).mean())
    low, high = _interval(np.array(coverage), len(drawn[0].test))
    certificates = [row[0] for row in batch.outcome.certificates]
    own = batch.outcome.thresholds[:, :, 0].mean(axis=1)
    return _Line(
        method=method,
        network=network.name,
        coverage=float(np.mean(coverage)),
        low=low,
        high=high,
        size=float(np.mean(sizes)),
        needs=METHODS[method].description.needs,
        guarantee=" or ".join(dict.fromkeys(certificate.kind for certificate in certificates)),
        assumption=certificates[0].assumption,
        thresholds=(float(own.min()), float(own.max())),
        rounds=cost.rounds,
        bits=cost.bits_per_device,
    )


def _interval(coverage: NDArray[np.float64], rows: int) -> tuple[float, float]:
    """Enclose the mean coverage over splits by a Wilson interval for as many rows as the splits are worth.

    The rows of a split share a threshold and so are no independent hits. How far the splits differ says how many
    independent rows would have been as informative (the design effect of cluster samples).
    """
    mean, worth = float(coverage.mean()), float(rows)
    if len(coverage) > 1 and coverage.var() > 0:
        worth = mean * (1 - mean) / (float(coverage.var(ddof=1)) / len(coverage))
    worth = max(1.0, min(worth, float(rows * len(coverage))))
    return wilson_interval(round(mean * worth), round(worth))


# --- what is shown ----------------------------------------------------------------------------------------------------


def _report(facts: dict[str, Any], lines: Sequence[_Line]) -> None:
    sizes, target = facts["sizes"], 1 - facts["alpha"]
    print(
        f"{len(sizes)} devices hold {sum(sizes):,} scores in all ({min(sizes)} to {max(sizes)} each), of "
        "handwritten digits in unequal mixes.\n"
        "Nobody shares data and there is no server: the devices talk to their neighbours only. (Methods that need a\n"
        "server are here for comparison.)\n"
        f"A classifier trained on {TRAINING_IMAGES} images names the right digit for {facts['accuracy']:.1%} of the "
        f"others; how many digits must a set name\nto hold the right one for {target:.4g} of them? "
        f"Coverage and size are means over {facts['splits']} random splits.\n"
    )
    columns = ("network", "method", "needs", "guarantee", "threshold", "coverage", "mean size", "rounds", "bits/device")
    rows = [
        (
            line.network,
            line.method,
            line.needs,
            line.guarantee + ("*" if line.guarantee == "counted" and line.assumption else ""),
            _span(*line.thresholds),
            f"{line.coverage:.4f}",
            f"{line.size:.3f}",
            f"{line.rounds:,}",
            format_bits(line.bits),
        )
        for line in lines
    ]
    right = ("threshold", "coverage", "mean size", "rounds", "bits/device")
    console.print_table(columns, rows, right=right, group_by="network")
    print()
    for text in _reading(lines, target):
        print(text)
    if facts["pictures"]:
        print("\npictures: " + ", ".join(facts["pictures"]))


def _reading(lines: Sequence[_Line], target: float) -> list[str]:
    """How to read the table, in facts that were measured."""
    at = {(line.method, line.network): line for line in lines}
    first, second = dict.fromkeys(line.network for line in lines)
    exact, pooled = at["e-dcp", first], at["fcp", first]
    texts = [
        f"Target: coverage {target:.4g} or more. Without a server e-dcp covers {exact.coverage:.4f} with "
        f"{exact.size:.3f} digits a set, by the swap rank;\nfcp, whose server sees every score, asks for one imagined "
        f"score per device as published: {pooled.coverage:.4f} with {pooled.size:.3f}.",
        *(
            f"On the {name} a device sends {format_bits(at['e-dcp', name].bits)} for it, where h-dcp sends "
            f"{format_bits(at['h-dcp', name].bits)} and q-dcp {format_bits(at['q-dcp', name].bits)}."
            for name in (first, second)
        ),
        "counted: the devices know the rank of their threshold. assumed: valid only if something holds that nobody\n"
        "checked. none: no guarantee.",
    ]
    starred = {line.method: line.assumption for line in lines if line.guarantee == "counted" and line.assumption}
    return texts + [f"* {method}: {words}." for method, words in starred.items()]


def _span(low: float, high: float) -> str:
    return f"{low:.4f}" if f"{low:.4f}" == f"{high:.4f}" else f"{low:.4f}..{high:.4f}"


# --- pictures ---------------------------------------------------------------------------------------------------------


def _draw(
    out: Path,
    digits: Digits,
    one: DigitsSplit,
    networks: Sequence[Network],
    lines: Sequence[_Line],
    alpha: float,
    done: Callable[[], None],
) -> list[Path]:
    out.mkdir(parents=True, exist_ok=True)
    scores = [_scores(digits, rows) for rows in one.calibration]
    first, second = out / "network.png", out / "methods.png"
    draw_agreement(first, [_agreement(scores, network, alpha) for network in networks])
    done()
    draw_methods(second, lines, alpha)
    done()
    return [first, second]


def _agreement(scores: Sequence[NDArray[np.float64]], network: Network, alpha: float) -> Agreement:
    """Watch H-DCP on one split: after every round, the quantile of the histogram that each device holds by then."""
    samples = WeightedScores.of(scores)
    n = int(samples.sizes.sum())
    block = replace(Block.everywhere(network, samples.sizes), alphas=(exact_alpha(alpha),))
    level = (min(int(block.ranks()[0, 0]), n) - 0.5) / n  # between two ranks: no rounding matters
    views: list[NDArray[np.float64]] = []

    def watch(_: int, message: Message, answer: object) -> None:
        if isinstance(message, Sum):
            held = message.values[:, :, 0]  # the cumulative histogram of each device, up to a factor
            views.append(((held >= level * held[:, -1:]).argmax(axis=1) + 1) / held.shape[1])

    batch = solve_draws(samples, network, (alpha,), "h-dcp", range=(0.0, 1.0), observer=watch)
    return Agreement(network, samples.sizes[:, 0], np.array(views), float(batch.outcome.thresholds.max()))
