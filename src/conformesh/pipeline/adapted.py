"""Calibration with adapted scores: choose settings, score leave-one-out, and fetch a window of pooled scores.

One run has up to three steps. The devices add up the counts that settings depend on (`Adaptation.summary_counts`), if
there are any; then the leave-one-out losses of every setting, if there are several; then they search the required rank
among the adapted scores of the best settings, and share the scores around it. Each device hides one of its rows, drawn
before any score is computed; `results.adapted` predicts with the other rows.

With `p-dcp` these sums and counts are masked, and the window has points of a public grid in place of scores: counts at
them bound the score of the required rank from above, so that sets contain those of exact scores.

With `mixture="own"` every device counts its own rows only, and sends sums of losses if there are several settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from conformesh.common.array_types import Floats, Ints
from conformesh.common.names import list_names
from conformesh.common.random_streams import random_stream
from conformesh.guarantee import Guarantee
from conformesh.kernels.ranks import OWN, Requirement
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.methods import get_method, make_options, run_method
from conformesh.pipeline.problems import LocalRows, Problem, PublicFacts, group_memberships
from conformesh.protocols.aggregate import NetworkSum, get_aggregator
from conformesh.protocols.block import Answers, Block, WindowRequest
from conformesh.protocols.gather import gather_by_flooding
from conformesh.protocols.messages import GatheringProtocol, Protocol
from conformesh.protocols.p_dcp import begin_exact_sums, check_exact_sums, grid_for_scores, search_by_exact_sums
from conformesh.protocols.waves import contradiction
from conformesh.results.adapted_facts import AdaptedFacts, DeviceRows
from conformesh.results.window import Window
from conformesh.scores.adapt import Adaptation, Bag
from conformesh.scores.adapt.base import FULL, LARGEST_LOSS, LOSS_UNIT, Setting, choice_level

if TYPE_CHECKING:
    from conformesh.protocols.groups import Grouping
    from conformesh.protocols.masks import MaskedSums
    from conformesh.table import Table

# Settings beside the best one that get a window, and by how much their sums of losses may be larger: one example in
# place of another changes a sum by few units. A candidate that selects another setting is included without a count.
_MOST_SHARED, _SHARED_WITHIN = 4, LARGEST_LOSS
_MOST_ELSEWHERE = 1  # the same for settings that only another set of examples allows


class AdaptedRun(NamedTuple):
    """What a run with adapted scores needs besides its block.

    Attributes
    ----------
    rows
        The rows of the local devices.
    guarantee
        The guarantee, with the groups that all devices agreed on.
    agreed
        The numbers of rows.
    grouping
        How groups overlap, where they do.
    requirement
        The mixture, and that examples are hidden.
    """

    rows: LocalRows
    guarantee: Guarantee
    agreed: PublicFacts
    grouping: Grouping | None
    requirement: Requirement

    @property
    def adaptation(self) -> Adaptation:
        """How scores adapt."""
        found: Adaptation = self.guarantee.adapt
        return found

    @property
    def is_own(self) -> bool:
        """Whether the guarantee holds for each device by itself."""
        return self.requirement.mixture == OWN


def device_rows(table: Table, device: int) -> DeviceRows:
    """Return the rows of one device of a table."""
    assert table.outputs is not None
    assert table.truth is not None
    own = table.rows(device)
    groups = None if table.groups is None else table.groups.take(np.arange(own.start, own.stop))
    return DeviceRows(Bag(table.outputs[own], table.truth[own]), groups)


def draw_hidden_rows(seed: int, network_rows: Ints, sizes: Ints) -> list[int]:
    """Return the place of the hidden row of each local device, -1 where it has no row; it does not depend on values."""
    return [
        int(random_stream(seed, "hidden row", row).integers(size)) if size else -1
        for row, size in zip(network_rows.tolist(), sizes.tolist(), strict=True)
    ]


def adapted_answers(blank: Block, asked: AdaptedRun, run: Any, *, sealed: bool = True) -> Protocol[Answers]:
    """Run all steps on the local devices; return answers with the problems and what predictions need."""
    return (yield from gather_by_flooding(_all_steps(blank, asked, run, sealed), blank, None, sealed))


def _all_steps(blank: Block, asked: AdaptedRun, run: Any, sealed: bool) -> GatheringProtocol[Answers]:
    adapt, level = asked.adaptation, choice_level(asked.guarantee.alphas)
    rows = [device_rows(asked.rows.table, k) for k in range(asked.rows.devices)]
    bags = [own.bag for own in rows]
    assert asked.rows.table.outputs is not None
    columns = adapt.columns(asked.rows.table.outputs)
    requirement = replace(asked.requirement, is_weighted=asked.guarantee.groups is not None and not asked.is_own)
    masked: MaskedSums | None = None
    if get_method(run.method).private:
        digest = sha256("".join(own.digest for own in rows).encode()).hexdigest()
        masked = yield from begin_exact_sums(replace(blank, requirement=requirement), run.chosen_options, digest)
    sums = _NetworkSums(blank, adapt.name, int(asked.agreed.rows.sum()), masked)
    counts = np.zeros(0, dtype=np.int64)
    if (held := np.stack([adapt.summary_counts(bag) for bag in bags])).shape[1]:
        counts = yield from sums.add_up("summary_counts", held, bags, 1)
    # Sorted, so that of several with the same loss a device that predicts takes the same one, whatever `counts` were.
    choices = tuple(sorted({*adapt.reachable_settings(counts, columns)}))
    losses = np.zeros(0, dtype=np.int64)
    if len(choices) > 1:
        own = np.array([[int(adapt.losses(bag, s, level).sum()) for s in choices] for bag in bags], dtype=np.int64)
        losses = yield from sums.add_up("losses", own, bags, LARGEST_LOSS)
    shared = _shared_settings(choices, adapt.settings(counts, columns), losses)
    scored = [
        [_leave_one_out_scores(adapt, bag, choices[place], name) for place in shared]
        for name, bag in zip(asked.rows.names, bags, strict=True)
    ]
    parts, samples, sizes = _score_columns(asked, scored, len(shared))
    block = replace(
        blank,
        sizes=sizes,
        requirement=requirement,
        items=np.repeat(asked.agreed.rows.sum(axis=1)[:, None], sizes.shape[1], axis=1)
        if requirement.is_weighted
        else None,
        alphas=asked.guarantee.alphas,
    )
    if asked.is_own:
        found = yield from run_method("local", block, samples, make_options("local", {}), run.faults)
    elif masked is not None:
        check_exact_sums(block, samples.sizes, "scores")
        options = grid_for_scores(run.chosen_options, adapt.bounds)
        block = replace(block, window=WindowRequest(int(adapt.window)))
        found = yield from search_by_exact_sums(block, samples, block.alphas, options, masked)
        revealed = "sums of losses of all rows for each setting, and " * bool(len(losses)) + found.facts["revealed"]
        found = replace(found, facts={**found.facts, "revealed": revealed})
    else:
        block = replace(block, window=_window_request(adapt, block))
        found = yield from run_method(run.method, block, samples, run.chosen_options, run.faults, sealed=sealed)
    if found.windows is not None:
        _check_windows(block, samples, found.windows, exact=masked is None)
    # Masked sums are for the mixture of sizes alone, in which every row weighs the same.
    demand = None if asked.is_own or masked is not None else block.demands[0]
    weights = np.ones(blank.devices, np.int64) if demand is None or demand.weights is None else demand.weights
    facts = AdaptedFacts(
        columns=columns,
        choices=choices,
        losses=tuple(losses.tolist()),
        counts=tuple(counts.tolist()),
        shared=tuple(shared),
        hidden={},
        digests={},
        weights=dict(zip(blank.network.ids, weights.tolist(), strict=True)),
        missing=Fraction(0) if demand is None else demand.missing,
        rounded=demand is not None and demand.rounded,
    )
    whole = asked.agreed.rows @ _atoms_of_parts(asked, len(asked.agreed.names.atoms) or 1)
    if found.sizes is not None:  # p-dcp: known only after the run
        whole = found.sizes[:, :: len(shared)]
    examples = whole.sum(axis=0).tolist()
    problems = tuple(
        Problem(() if part is None else (part,), alpha, p * len(shared), place, examples[p])
        for p, part in enumerate(parts)
        for place, alpha in enumerate(asked.guarantee.alphas)
    )
    return replace(found, problems=problems, adapted=facts)


class _NetworkSums:
    """Adds up whole numbers over all devices, masked or over a spanning tree, which is grown once."""

    def __init__(self, block: Block, name: str, examples: int, masked: MaskedSums | None) -> None:
        self._block, self._name, self._examples, self._masked = block, name, examples, masked
        self._total: NetworkSum | None = None

    def add_up(self, what: str, numbers: Ints, bags: Sequence[Bag], each: int) -> Protocol[Ints]:
        """Return the sums over all devices, (numbers,); an example adds from 0 to `each`, so that sums are short."""
        most = each * np.array([len(bag.labels) for bag in bags])[:, None]
        if ((numbers < 0) | (numbers > most)).any():
            raise ValueError(
                f"{what} of adaptation {self._name!r} must be whole numbers from 0 to {each} for each example, got "
                f"{numbers.min()} to {numbers.max()} as sums of {int(most.min()) // each} to {int(most.max()) // each}"
                " examples"
            )
        if self._masked is not None:
            check_exact_sums(self._block, numbers, f"/ {LOSS_UNIT} in losses")
            found = yield from self._masked(numbers)
            rest = np.inf  # nobody knows how many rows there are
        else:
            if self._total is None:
                self._total = yield from get_aggregator("tree").prepare(self._block)
            # A copy: the sum may take the memory that it is given.
            found = (yield from self._total(numbers.copy(), self._examples * each))[0]
            rest = self._examples * each - most.sum()
        sums, own = np.asarray(found, dtype=np.int64), numbers.sum(axis=0)
        if ((sums < own) | (sums - own > rest)).any():
            raise contradiction(f"sums of {what} over all devices do not fit those of {list_names(self._names)}")
        return sums

    @property
    def _names(self) -> list[str]:
        return [self._block.network.ids[row] for row in self._block.rows]


def _check_windows(block: Block, samples: WeightedScores, windows: Sequence[Sequence[Window]], exact: bool) -> None:
    """Refuse a window that contradicts scores of devices here; `exact`: its values are scores, not grid points."""
    for trial, row in enumerate(windows):
        weights = np.ones(block.devices, np.int64) if exact is False else block.demands[trial].weights
        own = np.ones(len(block.rows), np.int64) if weights is None else weights[block.rows]
        for window in row:
            values = window.values
            before = np.nextafter(values[1:], -np.inf) if exact else values[:0]
            asked = np.append(values, before)[None]
            held = samples.counts_of(np.array([trial]), asked)[:, :, 0] * own[:, None]
            all_of_it = samples.sizes[:, trial, None] * own[:, None]
            # What this device has up to the first value, between neighbouring values and beyond the last one.
            parts = np.diff(held[:, : len(values)], axis=1, prepend=0, append=all_of_it)
            whole = np.diff(window.counts, prepend=0, append=window.total)
            strange = (parts > whole).any(axis=1)
            if exact and len(values):  # no score lies between two values
                strange |= (held[:, len(values) :] != held[:, : len(values) - 1]).any(axis=1)
            if strange.any():
                name = block.network.ids[block.rows[int(np.argmax(strange))]]
                raise contradiction(f"the pooled scores around the threshold do not fit the scores of device {name}")


def _leave_one_out_scores(adapt: Adaptation, bag: Bag, setting: Setting, name: str) -> Floats:
    """Return the scores of a device's rows; refuse what an adaptation of a user must not return."""
    scores = np.asarray(adapt.leave_one_out(bag, setting), dtype=np.float64)
    if scores.shape != (len(bag),) or np.isnan(scores).any():
        what = "NaN" if scores.shape == (len(bag),) else f"shape {scores.shape}"
        raise ValueError(
            f"device {name}: leave_one_out of adaptation {adapt.name!r} must return one number for each of "
            f"{len(bag)} examples, got {what}"
        )
    return scores


def _shared_settings(choices: Sequence[Setting], usual: Sequence[Setting], losses: Ints) -> list[int]:
    """Return the places of the settings that get a window: the best one first, then those that may become it."""
    if len(choices) == 1:
        return [0]
    order = np.argsort(losses, kind="stable").tolist()
    there = {*usual}
    best = [place for place in order if choices[place] in there]
    near = [place for place in best if losses[place] <= losses[best[0]] + _SHARED_WITHIN]
    found = near[:_MOST_SHARED]
    # Settings of another usual scale, which one example in place of another can lead to.
    elsewhere: dict[Any, int] = {}
    for place in order:
        kind = choices[place][-1]
        if choices[place] not in there and elsewhere.get(kind, 0) < _MOST_ELSEWHERE:
            elsewhere[kind] = elsewhere.get(kind, 0) + 1
            found.append(place)
    return found


def _atoms_of_parts(asked: AdaptedRun, atoms: int) -> Ints:
    """Return which combinations of groups belong to each part, (atoms, parts), as 0 and 1."""
    groups = asked.guarantee.groups
    if groups is None:
        return np.ones((1, 1), dtype=np.int64)
    members = group_memberships(groups, asked.grouping, asked.agreed, False)
    return np.array([[int(code in part) for part in members] for code in range(atoms)], dtype=np.int64)


def _score_columns(
    asked: AdaptedRun, scored: Sequence[Sequence[Any]], settings: int
) -> tuple[list[str | None], WeightedScores, Ints]:
    """Return the names of the parts, the scores with a column for each part and setting, and all numbers of scores."""
    groups, agreed = asked.guarantee.groups, asked.agreed
    parts: list[str | None] = [None] if groups is None else [*groups.part_names]
    members = _atoms_of_parts(asked, len(agreed.names.atoms) or 1)
    codes = asked.rows.atom_codes(agreed.atoms)
    segments, table = [], asked.rows.table
    for k, own in enumerate(scored):
        inside = None if codes is None else members[codes[table.rows(k)]].astype(bool)
        for p in range(len(parts)):
            segments += [scores if inside is None else scores[inside[:, p]] for scores in own]
    sizes = np.array([len(segment) for segment in segments], dtype=np.int64)
    flat = np.concatenate(segments) if segments else np.zeros(0)
    samples = WeightedScores.from_flat(flat, sizes, len(parts) * settings, names=asked.rows.names)
    return parts, samples, np.repeat(agreed.rows @ members, settings, axis=1)


def _window_request(adapt: Adaptation, block: Block) -> WindowRequest:
    """Return how many scores around the threshold every device needs."""
    if adapt.window != FULL:
        return WindowRequest(int(adapt.window), None)
    reach = np.zeros(block.trials, dtype=np.int64)
    for column, demand in enumerate(block.demands):
        weights = np.ones(block.devices, np.int64) if demand.weights is None else demand.weights
        # A device's own rows decide at most what they weigh; two more for the hidden row and for a group's weight.
        reach[column] = int(((block.sizes[:, column] + 2) * weights).max(initial=0))
    return WindowRequest(None, reach)
