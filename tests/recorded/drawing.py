"""Data of recorded calls, drawn from a seed with exact operations only, so that every machine draws the same numbers.

`Table` holds what the devices have, device by device; `handed_over` puts it into one of the forms that users have.
Nothing here is part of the library.
"""

import hashlib
import json
import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np

FORMS = ("list", "dict", "pandas", "polars", "columns", "records", "table", "flat")
FRAMES = ("pandas", "polars", "columns", "records")


def generator(seed, purpose):
    """Return the generator of one purpose, so that a further column leaves the others as they are."""
    return np.random.Generator(np.random.PCG64([seed, zlib.crc32(purpose.encode())]))


def draw_values(rng, size, kind, shift=0.0):
    """Draw scores of a kind; only integers and `random()` are drawn, which no version of a library rounds."""
    return KINDS[kind](rng, size, shift)


KINDS = {
    "spread": lambda rng, size, shift: rng.random(size) + rng.random(size) + rng.random(size) - 1.5 + shift,
    "unit": lambda rng, size, shift: rng.random(size),
    "ties": lambda rng, size, shift: rng.integers(0, 9, size) / 4,
    "integers": lambda rng, size, shift: rng.integers(-50, 50, size),
    "large": lambda rng, size, shift: (rng.random(size) - 0.5) * 2.0 ** rng.integers(-300, 1000, size),
    "infinite": lambda rng, size, shift: np.where(
        rng.random(size) < 0.04, rng.choice([-np.inf, np.inf], size), rng.random(size)
    ),
    "constant": lambda rng, size, shift: np.full(size, 0.25),
}


def draw_sizes(rng, devices, spec):
    """Draw how many scores each device has: a list, one number for all, or bounds with some devices left empty."""
    if isinstance(spec, list):
        return np.array(spec)
    if isinstance(spec, int):
        return np.full(devices, spec)
    sizes = rng.integers(spec["from"], spec["to"] + 1, devices)
    sizes[rng.permutation(devices)[: spec.get("empty", 0)]] = 0
    return sizes


@dataclass
class Table:
    """What the devices have: one entry per device in `scores` and in every column."""

    names: list[str]
    scores: list[Any]
    columns: dict[str, list[Any]] = field(default_factory=dict)
    tests: Any = None
    outputs: list[Any] = field(default_factory=list)

    def digest(self):
        """Return a digest of everything that was drawn."""
        drawn = [self.names, self.scores, self.columns, self.tests, self.outputs]
        text = json.dumps(drawn, sort_keys=True, default=lambda array: array.tolist())
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def draw(call):
    """Draw the data of a call."""
    data, devices = call["data"], call["network"]["devices"]
    seed, kind = data["seed"], data.get("values", "spread")
    sizes = draw_sizes(generator(seed, "sizes"), devices, data["sizes"])
    rng = generator(seed, "scores")
    shape = [(int(n), 2) if call.get("sides") else int(n) for n in sizes]
    scores = [draw_values(rng, own, kind, k / 8) for k, own in enumerate(shape)]
    table = Table(device_names(call), scores)
    if call.get("mixture") == "column":
        shares = generator(seed, "shares").integers(1, 7, devices)
        table.columns["share"] = [np.full(n, share) for n, share in zip(sizes, shares, strict=True)]
    _draw_groups(call, sizes, table)
    _draw_weights(call, sizes, table)
    _draw_tests(call, table, kind)
    if call["kind"] == "control":
        _draw_losses(call["losses"], seed, sizes, table)
    return table


def device_names(call):
    """Return the names of the devices, by row of the network."""
    prefix = call["network"].get("names", "")
    return [f"{prefix}{k}" for k in range(call["network"]["devices"])]


def _draw_groups(call, sizes, table):
    spec = call.get("groups")
    if spec is None:
        return
    rng = generator(call["data"]["seed"], "groups")
    if spec["form"] == "columns":
        for column, labels in spec["columns"].items():
            table.columns[column] = [np.array(labels)[rng.integers(0, len(labels), n)] for n in sizes]
        return
    names = spec["names"]
    if spec["form"] == "labels":
        table.columns["group"] = [np.array(names)[rng.integers(0, len(names), n)] for n in sizes]
        return
    masks = [rng.random((n, len(names))) < spec.get("share", 0.4) for n in sizes]
    if spec["form"] == "masks":
        table.columns["group"] = masks
    else:
        table.columns["group"] = [[[names[j] for j in np.flatnonzero(row)] for row in own] for own in masks]


def _draw_weights(call, sizes, table):
    spec, seed = call.get("weights") or {}, call["data"]["seed"]
    if "each" in spec:
        rng, bound = generator(seed, "weights"), spec["bound"]
        parts = {"eighths": 8, "thirds": 3, "whole": 1}.get(spec["each"])
        each = [
            rng.random(n) * bound if parts is None else rng.integers(0, int(parts * bound) + 1, n) / parts
            for n in sizes
        ]
        table.columns["weight"] = each
    if "function" in spec or "centres" in call:
        features = (call.get("centres") or spec).get("features", 1)
        rng = generator(seed, "inputs")
        table.columns["input"] = [rng.random(n if features == 1 else (n, features)) for n in sizes]
    labels = spec.get("classes") or call.get("labels")
    if labels:
        rng = generator(seed, "labels")
        table.columns["label"] = [rng.integers(0, len(labels), n) for n in sizes]


def _draw_tests(call, table, kind):
    """Draw test scores; half of them are calibration scores, since ties are where mistakes hide."""
    spec = call.get("tests")
    if spec is None:
        return
    rng = generator(call["data"]["seed"], "tests")
    pooled = np.concatenate([np.asarray(own, dtype=float) for own in table.scores])

    def drawn(number):
        fresh = np.asarray(draw_values(rng, number, kind, spec.get("shift", 0.0)), dtype=float)
        known = pooled[rng.integers(0, len(pooled), number)]
        return np.where(rng.random(number) < 0.5, fresh, known)

    if call["kind"] == "detect":
        table.tests = [drawn(int(n)) for n in rng.integers(0, spec["number"] + 1, len(table.names))]
    elif "classes" in spec:
        table.tests = drawn(spec["number"] * spec["classes"]).reshape(spec["number"], spec["classes"])
    else:
        table.tests = drawn(spec["number"])
        if call.get("labels"):
            table.columns["test label"] = [rng.integers(0, len(call["labels"]), spec["number"])]


def _draw_losses(spec, seed, sizes, table):
    rng, parts = generator(seed, "losses"), spec.get("parts", 6)
    bound = spec.get("bound", 1.0)
    for n in sizes.tolist():
        if spec["form"] == "outputs":
            table.outputs.append((rng.random((n, 5)), rng.random((n, 5)) < 0.4))
            continue
        falling = np.sort(rng.integers(0, parts + 1, (n, len(spec["lambdas"]))), axis=1)[:, ::-1] / parts * bound
        if spec.get("ends"):
            falling[:, -1] = 0.0
        table.outputs.append(falling[:, ::-1] if spec.get("rises") else falling)


def handed_over(table, form):
    """Return the scores in one of `FORMS` but the last, and a function that returns a column in the matching form."""
    if form in ("list", "table", "flat"):
        scores = np.stack(table.scores) if form == "table" else table.scores
        return scores, lambda name: table.columns[name]
    if form == "dict":
        order = [*range(len(table.names))][::-1]  # another order than the network's
        named = {table.names[k]: table.scores[k] for k in order}
        return named, lambda name: {table.names[k]: table.columns[name][k] for k in order}

    def column(name):
        values = table.columns[name][0]
        return name if values.ndim == 1 else [f"{name} {j}" for j in range(values.shape[1])]

    return _frame(table, form), column


def _frame(table, form):
    """Return a long frame with shuffled rows, and a column for each feature where a row has several."""
    owners = np.repeat(np.arange(len(table.names)), [len(own) for own in table.scores])
    order = generator(len(owners), "rows").permutation(len(owners))
    columns = {"device": np.array(table.names)[owners][order]}
    scores = np.concatenate(table.scores)
    sides = {"score": scores} if scores.ndim == 1 else {"lower": scores[:, 0], "upper": scores[:, 1]}
    others = {name: np.concatenate(own) for name, own in table.columns.items() if name != "test label"}
    for name, values in {**sides, **others}.items():
        for place, part in enumerate([values] if values.ndim == 1 else values.T):
            columns[name if values.ndim == 1 else f"{name} {place}"] = part[order]
    if form == "pandas":
        import pandas as pd

        return pd.DataFrame(columns)
    if form == "polars":
        import polars as pl

        return pl.DataFrame(columns)
    if form == "records":
        return [
            dict(zip(columns, row, strict=True)) for row in zip(*(c.tolist() for c in columns.values()), strict=True)
        ]
    return columns
