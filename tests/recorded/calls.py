"""Recorded calls: what is asked of the library, as plain data that no name of a function of the library appears in.

A call is a dict that can be written as JSON:

id, kind        its name, and what it is: calibrate, control, p_values, detect, draws, quantiles
data, network   how the scores are drawn (`drawing.draw`), in which form they are handed over, and on which graph
alpha           one level, a list of levels, or {"lower": ..., "upper": ...} for the two sides of an interval
mixture, rank_rule, pac_confidence, groups, group_rule, group_order, group_atoms, weights, sides, centres, losses,
tests, labels, fdr, rule, draws, rng, score, strict
                the parts of the guarantee, each left out where it is the default
method, options, engine, faults
                how it is run
removed_way     true where sums are formed by gossip, Chebyshev or finite-time consensus
unequal_sides   true where the two sides of an interval have different levels
"""

from itertools import count

SHAPES = [
    ("cycle", 8),
    ("torus", 12),
    ("star", 7),
    ("chain", 6),
    ("tree", 15),
    ("complete", 5),
    ("erdos-renyi", 20),
    ("grid", 9),
    ("small-world", 14),
    ("scale-free", 25),
    ("random-regular", 10),
    ("geometric", 16),
]
SIZES = [
    {"from": 3, "to": 30},
    {"from": 5, "to": 20, "empty": 1},
    12,
    {"from": 3, "to": 60, "empty": 2},
    {"from": 1, "to": 25},
    {"from": 20, "to": 40},
]
VALUES = ["spread", "ties", "unit", "integers", "spread", "large", "unit"]
FORMS = ["list", "dict", "list", "pandas", "polars"]
MIXTURES = ["sizes", "paper", "equal", "given"]
FRAMES = ("pandas", "polars", "columns", "records")


class Book:
    """Collects calls; what a call does not say about data and network goes round the lists above."""

    def __init__(self):
        self.calls, self.numbers = [], {}

    def add(self, family, kind="calibrate", *, devices=None, topology=None, data=None, network=None, **parts):
        number = next(self.numbers.setdefault(family, count(1)))
        turn = len(self.calls)
        shape = SHAPES[turn % len(SHAPES)]
        if topology or devices:
            shape = (topology or "cycle", devices or 8)
        drawn = {
            "seed": 1000 + turn,
            "sizes": SIZES[turn % len(SIZES)],
            "values": VALUES[turn % len(VALUES)],
            "form": FORMS[turn % len(FORMS)],
            **(data or {}),
        }
        if drawn["form"] in FRAMES and isinstance(drawn["sizes"], dict):
            drawn["sizes"] = {**drawn["sizes"], "empty": 0}  # a frame cannot name a device without rows
        if drawn["form"] in ("table", "flat") and "sizes" not in (data or {}):
            drawn["sizes"] = 14
        graph = {"topology": shape[0], "devices": shape[1], **(network or {})}
        if shape[0] in ("erdos-renyi", "geometric", "small-world", "scale-free", "random-regular", "tree"):
            graph.setdefault("seed", number)
        parts = {name: value for name, value in parts.items() if value is not None}
        call = {"id": f"{family}-{number:02d}", "kind": kind, "data": drawn, "network": graph, **parts}
        self.calls.append(call)

    def each(self, family, several, **common):
        for parts in several:
            self.add(family, **{**common, **parts})


def plain(book):
    """One threshold of E-DCP: input forms, kinds of values, graphs, mixtures, rank rules, confidence, options."""
    forms = ["list", "dict", "pandas", "polars", "columns", "records", "table", "flat"]
    for form in forms:
        book.add("form", data={"form": form}, alpha=0.1)
    for form in ("dict", "pandas", "polars", "columns", "records", "flat"):
        book.add(
            "form",
            data={"form": form},
            alpha=0.2,
            mixture="equal",
            network={"names": "site "} if form in ("dict", *FRAMES) else None,
        )
    for values in ("spread", "ties", "integers", "large", "infinite", "constant"):
        book.add("values", data={"values": values}, alpha=0.15)
    for values in ("spread", "ties", "large", "infinite"):
        book.add("values", data={"values": values}, alpha=0.3, mixture="given", rank_rule="swap")
    for mixture in MIXTURES:
        book.add("mixture", alpha=0.1, mixture=mixture)
        book.add("mixture", alpha=0.25, mixture=mixture, rank_rule="swap")
    for mixture in ("paper", "equal", "given"):
        book.add(
            "mixture", alpha=0.3, mixture=mixture, data={"form": "dict", "sizes": {"from": 3, "to": 50, "empty": 2}}
        )
    book.add("mixture", alpha=0.2, mixture="given-zero")
    book.add("mixture", alpha=0.2, mixture="given-fine", data={"sizes": {"from": 20, "to": 60}})
    book.add("mixture", alpha=0.2, mixture="column", data={"form": "pandas"})
    book.add("rank", alpha=0.1, mixture="paper", rank_rule="ghost")
    book.add("rank", alpha=0.12, rank_rule="ghost", data={"sizes": 10, "form": "list"})
    book.add("rank", alpha="1/3", rank_rule="auto", mixture="paper")
    book.add("rank", alpha=0.001)
    book.add("pac", alpha=0.2, pac_confidence=0.9, data={"sizes": {"from": 20, "to": 40}})
    book.add("pac", alpha=0.1, pac_confidence=0.95, mixture="equal", data={"sizes": {"from": 20, "to": 40}})
    book.add("pac", alpha=0.3, pac_confidence=0.8, mixture="given", data={"sizes": {"from": 10, "to": 40}})
    book.add("pac", alpha=0.05, pac_confidence=0.99)
    for topology, devices in (("complete", 1), ("chain", 2), ("scale-free", 100)):
        book.add("few-or-many", alpha=0.1, topology=topology, devices=devices, data={"sizes": 20, "form": "list"})
    book.add(
        "few-or-many", alpha=0.2, topology="complete", devices=1, mixture="equal", data={"sizes": 9, "form": "list"}
    )
    book.add("graph", alpha=0.1, network={"given": "name"}, topology="torus", devices=12)
    book.add(
        "graph",
        alpha=0.1,
        network={"given": "networkx", "names": "n"},
        topology="tree",
        devices=11,
        data={"form": "dict"},
    )
    book.add("score", alpha=0.1, score="lac", data={"values": "unit"})
    book.add("score", alpha=0.1, score="absolute-residual", data={"values": "unit"})
    for options in (
        {"schedule": "top-k"},
        {"schedule": "top-k", "aggregate": "flood"},
        {"schedule": "top-k", "aggregate": "tree", "prefer": "rounds"},
        {"schedule": "window"},
        {"schedule": "window", "aggregate": "tree", "width": 5},
        {"schedule": "count", "aggregate": "tree"},
        {"schedule": "count", "aggregate": "flood", "width": 3},
        {"prefer": "rounds", "aggregate": "tree"},
        {"prefer": "numbers", "aggregate": "tree"},
        {"prefer": "bits", "aggregate": "tree"},
    ):
        book.add("e-dcp", alpha=0.1, options=options)
    book.add("e-dcp", alpha=0.15, mixture="equal", options={"schedule": "top-k", "aggregate": "flood"})
    book.add("e-dcp", alpha=0.15, mixture="given", options={"schedule": "count", "aggregate": "tree"})
    for way in ("gossip", "chebyshev", "finite-time"):
        book.add(
            "e-dcp",
            alpha=0.1,
            topology="torus",
            devices=12,
            removed_way=True,
            options={"schedule": "count", "aggregate": way},
        )


def levels_and_groups(book):
    """Several levels, and groups of every form and rule."""
    book.each(
        "levels",
        [
            {"alpha": [0.1]},
            {"alpha": [0.05, 0.1, 0.2]},
            {"alpha": [0.3, 0.1], "mixture": "equal"},
            {"alpha": [0.2, 0.1, 0.4, 0.05], "mixture": "given"},
            {"alpha": ["1/7", 0.2], "mixture": "paper", "rank_rule": "ghost"},
            {"alpha": [0.2, 0.1], "pac_confidence": 0.9, "data": {"sizes": {"from": 20, "to": 50}}},
            {"alpha": [0.25, 0.5], "options": {"schedule": "count", "aggregate": "tree"}},
        ],
    )
    labels = {"form": "labels", "names": ["a", "b", "c"]}
    lists = {"form": "lists", "names": ["north", "old", "night"]}
    masks = {"form": "masks", "names": ["0", "1"]}
    columns = {"form": "columns", "columns": {"sex": ["f", "m"], "age": ["old", "young"]}}
    wide = {"sizes": {"from": 15, "to": 50}}
    book.each(
        "disjoint",
        [
            {"data": {"form": "list", **wide}},
            {"data": {"form": "dict", "sizes": {"from": 15, "to": 50, "empty": 1}}, "mixture": "equal"},
            {"data": {"form": "pandas", **wide}, "alpha": [0.1, 0.2]},
            {"data": {"form": "polars", **wide}, "mixture": "given"},
            {"data": {"form": "list", "sizes": {"from": 10, "to": 40, "empty": 2}}, "alpha": [0.2]},
            {"data": {"form": "list", **wide}, "mixture": "paper", "rank_rule": "swap"},
            {"data": {"form": "list", **wide}, "group_rule": "atoms"},
            {"data": {"form": "list", **wide}, "group_rule": "max", "mixture": "equal"},
            {"data": {"form": "list", **wide}, "method": "h-dcp", "options": {"bins": 50}},
            {"data": {"form": "list", **wide}, "method": "r-dcp"},
            {"data": {"form": "list", **wide}, "method": "p-dcp"},
            {"data": {"form": "list", **wide}, "method": "fcp"},
        ],
        groups=labels,
        alpha=[0.15],
    )
    book.each(
        "overlapping",
        [
            {"groups": lists, "data": {"form": "list", **wide}},
            {"groups": lists, "data": {"form": "dict", **wide}, "group_rule": "max"},
            {"groups": lists, "data": {"form": "list", **wide}, "group_rule": "atoms", "alpha": [0.3, 0.2]},
            {
                "groups": lists,
                "data": {"form": "list", **wide},
                "group_rule": "seq",
                "group_order": ["old", "night", "north"],
            },
            {
                "groups": lists,
                "data": {"form": "list", "sizes": {"from": 15, "to": 50, "empty": 1}},
                "group_rule": "seq",
                "mixture": "equal",
            },
            {"groups": lists, "data": {"form": "list", **wide}, "group_rule": "regression"},
            {"groups": masks, "data": {"form": "list", **wide}, "group_rule": "regression", "alpha": [0.1, 0.25]},
            {"groups": masks, "data": {"form": "dict", **wide}, "group_rule": "seq", "group_order": ["1", "0"]},
            {"groups": masks, "data": {"form": "list", **wide}, "group_rule": "max", "mixture": "given"},
            {"groups": columns, "data": {"form": "pandas", **wide}, "group_rule": "seq"},
            {"groups": columns, "data": {"form": "polars", **wide}, "group_rule": "atoms"},
            {"groups": columns, "data": {"form": "pandas", **wide}, "group_rule": "regression"},
            {"groups": columns, "data": {"form": "dict", **wide}, "group_rule": "max"},
            {
                "groups": lists,
                "data": {"form": "list", **wide},
                "group_rule": "auto",
                "group_atoms": [
                    [["north"], 80],
                    [["night"], 80],
                    [["old"], 80],
                    [[], 80],
                    [["night", "north"], 80],
                    [["night", "old"], 80],
                    [["north", "old"], 80],
                    [["night", "north", "old"], 80],
                ],
            },
            {
                "groups": lists,
                "data": {"form": "list", **wide},
                "group_rule": "regression",
                "group_atoms": [[["north", "east"], 0]],
            },
            {
                "groups": {"form": "lists", "names": list("abcdefg"), "share": 0.5},
                "group_rule": "regression",
                "rng": 5,
                "data": {"form": "list", "sizes": {"from": 30, "to": 60}, "values": "spread"},
            },
            {"groups": {"form": "labels", "names": ["a", "b"]}, "data": {"form": "list", **wide}, "group_rule": "seq"},
            {
                "groups": {"form": "labels", "names": ["a", "b"]},
                "data": {"form": "list", **wide},
                "group_rule": "regression",
            },
        ],
        alpha=[0.2],
    )


def shifts(book):
    """Weights of scores: given, a function of inputs, for several test weights, by class, estimated."""
    wide = {"from": 8, "to": 30}
    book.each(
        "weighted",
        [
            {"weights": {"each": "eighths", "bound": 2.0}},
            {"weights": {"each": "thirds", "bound": 3.0}},
            {"weights": {"each": "fine", "bound": 1.7}},
            {
                "weights": {"each": "whole", "bound": 4.0},
                "mixture": "equal",
                "data": {"form": "list", "sizes": {**wide, "empty": 1}},
            },
            {"weights": {"each": "eighths", "bound": 2.5}, "mixture": "paper"},
            {"weights": {"each": "fine", "bound": 0.3}, "mixture": "given"},
            {"weights": {"each": "eighths", "bound": 2.0}, "data": {"form": "pandas", "sizes": wide}},
            {"weights": {"each": "eighths", "bound": 2.0}, "data": {"form": "dict", "sizes": wide}},
            {"weights": {"function": "ramp", "bound": 2.0}, "data": {"form": "list", "sizes": wide}},
            {"weights": {"function": "ramp", "bound": 2.0, "features": 2}, "data": {"form": "polars", "sizes": wide}},
            {"weights": {"each": "fine", "bound": 2.0, "estimated": True}, "data": {"form": "list", "sizes": wide}},
            {
                "weights": {"each": "thirds", "bound": 2.0},
                "topology": "complete",
                "devices": 1,
                "data": {"form": "list", "sizes": 30},
            },
            {"weights": {"each": "fine", "bound": 1.1}, "options": {"schedule": "count", "aggregate": "tree"}},
        ],
        alpha=0.2,
        data={"sizes": wide},
    )
    book.each(
        "shifted",
        [
            {"weights": {"each": "eighths", "bound": 2.0}},
            {"weights": {"each": "eighths", "bound": 2.0, "tests": [0.5, 1.0]}},
            {"weights": {"each": "thirds", "bound": 3.0, "tests": [1.0, 0.25, 2.0]}, "alpha": [0.3, 0.15]},
            {"weights": {"each": "fine", "bound": 1.3, "tests": [0.0]}, "mixture": "equal"},
            {"weights": {"function": "ramp", "bound": 2.0, "tests": [1.0]}, "data": {"form": "pandas", "sizes": wide}},
            {"weights": {"classes": {"0": 1.0, "1": 3.0}}},
            {"weights": {"classes": {"0": 0.5, "1": 1.25, "2": 0.0}}, "mixture": "paper"},
            {
                "weights": {"classes": {"0": 1.0, "1": 0.7, "2": 2.0}},
                "data": {"form": "pandas", "sizes": wide},
                "alpha": [0.1, 0.3],
            },
            {"weights": {"classes": {"0": 1.0, "1": 3.0}}, "data": {"form": "dict", "sizes": wide}, "mixture": "given"},
            {"weights": {"each": "fine", "bound": 2.0, "estimated": True, "tests": [1.5]}},
        ],
        alpha=[0.25],
        data={"form": "list", "sizes": wide},
    )


def sides_and_centres(book):
    """Two sides of an interval, and thresholds near centres."""
    wide = {"from": 15, "to": 40}
    book.each(
        "sides",
        [
            {"alpha": 0.1},
            {"alpha": 0.2, "mixture": "equal", "data": {"form": "dict", "sizes": wide}},
            {"alpha": 0.3, "data": {"form": "pandas", "sizes": wide}},
            {"alpha": 0.2, "pac_confidence": 0.9},
            {"alpha": 0.2, "mixture": "given", "rank_rule": "swap"},
            {"alpha": 0.15, "score": "cqr"},
            {"alpha": 0.2, "method": "h-dcp", "options": {"bins": 40}},
            {"alpha": 0.2, "method": "r-dcp"},
            {"alpha": 0.2, "method": "p-dcp"},
            {"alpha": {"lower": 0.05, "upper": 0.15}},
            {"alpha": {"lower": 0.25, "upper": 0.1}, "mixture": "equal"},
            {"alpha": {"lower": 0.1, "upper": 0.2}, "data": {"form": "polars", "sizes": wide}},
            {"alpha": {"lower": 0.15, "upper": 0.1}, "pac_confidence": 0.9},
            {"alpha": {"lower": 0.3, "upper": 0.02}, "mixture": "paper", "rank_rule": "ghost"},
            {"alpha": {"lower": 0.1, "upper": 0.15}, "method": "h-dcp", "options": {"bins": 40}},
            {"alpha": {"lower": 0.1, "upper": 0.15}, "method": "q-dcp", "options": {"rounds": 30}},
        ],
        sides=True,
        data={"form": "list", "sizes": wide, "values": "spread"},
    )
    for call in book.calls:
        if isinstance(call.get("alpha"), dict):
            call["unequal_sides"] = True
    line = {"points": [0.1, 0.5, 0.9], "bandwidth": 0.25}
    plane = {"points": [[0.2, 0.3], [0.7, 0.6]], "bandwidth": 0.5, "scales": [1.0, 2.0], "features": 2}
    capped = {"points": [0.2, 0.8], "bandwidth": 0.5, "caps": [60000, 60000]}
    book.each(
        "centres",
        [
            {"centres": line},
            {"centres": line, "mixture": "equal", "data": {"form": "dict", "sizes": {**wide, "empty": 1}}},
            {"centres": line, "data": {"form": "pandas", "sizes": wide}},
            {"centres": plane},
            {"centres": plane, "mixture": "given", "data": {"form": "polars", "sizes": wide}},
            {"centres": capped},
            {"centres": capped, "mixture": "paper", "rank_rule": "swap"},
            {"centres": {"points": [0.5], "bandwidth": 1.0}},
            {"centres": line, "options": {"schedule": "count", "aggregate": "tree"}},
        ],
        alpha=0.2,
        data={"form": "list", "sizes": wide},
    )


def losses(book):
    """Risk control: forms of losses, bounds, mixtures, several risks."""
    grid = {"form": "grid", "lambdas": [0.0, 0.25, 0.5, 0.75, 1.0], "ends": True}
    wide = {"from": 8, "to": 30}
    book.each(
        "risk",
        [
            {"losses": grid},
            {"losses": grid, "mixture": "equal", "data": {"form": "list", "sizes": {**wide, "empty": 1}}},
            {"losses": grid, "mixture": "given"},
            {"losses": {**grid, "parts": 23}, "mixture": "paper"},
            {"losses": {**grid, "bound": 3.0, "parts": 17}, "alpha": 1.4},
            {"losses": {"form": "items", "lambdas": [-1.0, 0.5, 2.0], "ends": True}},
            {"losses": {"form": "items", "lambdas": [-1.0, 0.5, 2.0]}, "alpha": 0.05},
            {"losses": {"form": "frame", "lambdas": [0.0, 0.4, 0.8], "ends": True}},
            {"losses": {"form": "outputs"}},
            {"losses": {"form": "outputs"}, "mixture": "equal", "data": {"form": "dict", "sizes": wide}},
            {"losses": grid, "alpha": 0.9},
            {"losses": grid, "topology": "complete", "devices": 1, "data": {"form": "list", "sizes": 40}},
        ],
        kind="control",
        alpha=0.4,
        data={"form": "list", "sizes": wide},
    )
    book.each(
        "risks",
        [
            {"losses": grid},
            {"losses": grid, "mixture": "equal", "alpha": [0.3, 0.1, 0.2]},
            {"losses": {**grid, "bound": 2.0, "parts": 19}, "mixture": "given", "alpha": [0.4, 1.1]},
            {"losses": {"form": "outputs"}, "data": {"form": "dict", "sizes": wide}},
            {"losses": {"form": "frame", "lambdas": [0.0, 0.4, 0.8], "ends": True}, "mixture": "paper"},
            {"losses": grid, "options": {"schedule": "count", "aggregate": "tree"}},
        ],
        kind="control",
        alpha=[0.1, 0.4],
        data={"form": "list", "sizes": wide},
    )


def counting(book):
    """p-values, anomaly detection and quantiles."""
    tests, table, tree = {"number": 9}, {"number": 5, "classes": 3}, {"aggregate": "tree"}
    book.each(
        "p-values",
        [
            {},
            {"mixture": "equal"},
            {"mixture": "paper", "rank_rule": "ghost"},
            {"mixture": "given", "rank_rule": "swap"},
            {"data": {"form": "pandas"}},
            {"data": {"form": "flat"}},
            {"data": {"form": "dict", "values": "ties"}},
            {"tests": table},
            {"tests": table, "labels": ["0", "1", "2"], "data": {"form": "list", "values": "unit"}},
            {"labels": ["0", "1"], "data": {"form": "list", "values": "ties"}},
            {"labels": ["0", "1"], "mixture": "equal", "data": {"form": "pandas", "values": "spread"}},
            {"labels": ["0", "1"], "mixture": "given", "data": {"form": "dict", "values": "spread"}},
            {"topology": "complete", "devices": 1, "data": {"form": "list", "sizes": 25}},
            {"options": {"aggregate": "flood"}},
        ],
        kind="p_values",
        tests=tests,
        options=tree,
    )
    many = {"sizes": {"from": 20, "to": 50}, "values": "spread"}
    book.each(
        "detect",
        [
            {"fdr": 0.2},
            {"fdr": 0.3, "mixture": "equal"},
            {"fdr": 0.3, "mixture": "given"},
            {"fdr": 0.1, "rule": "plain"},
            {"fdr": 0.4, "rule": "plain", "mixture": "equal"},
            {"fdr": 0.3, "draws": 60},
            {"fdr": 0.25, "p_values": False},
            {"fdr": 0.25, "data": {**many, "form": "dict"}},
            {"fdr": 0.5, "mixture": "paper", "rng": 11},
            {"fdr": 0.01},
        ],
        kind="detect",
        tests={"number": 8, "shift": 3.0},
        rng=3,
        data={**many, "form": "list"},
        options=tree,
    )
    book.each(
        "quantiles",
        [
            {"alpha": [0.5]},
            {"alpha": [0.0, 0.25, 0.5, 1.0]},
            {"alpha": [0.9, 0.1], "data": {"form": "pandas"}},
            {"alpha": [0.3], "data": {"form": "flat", "values": "ties"}},
        ],
        kind="quantiles",
    )


def draws(book):
    """Many draws of the same experiment in one run: thresholds, ranks, and the cost of one of them."""
    book.each(
        "draws",
        [
            {"alpha": [0.1]},
            {"alpha": [0.1, 0.3], "mixture": "equal"},
            {"alpha": [0.2], "mixture": "given", "rank_rule": "swap"},
            {"alpha": [0.2, 0.1], "pac_confidence": 0.9},
            {"alpha": [0.1], "method": "h-dcp", "options": {"bins": 30, "range": [0.0, 1.0], "rounds": 20}},
            {"alpha": [0.1, 0.2], "method": "q-dcp", "options": {"rounds": 40}},
            {"alpha": [0.1, 0.2], "method": "fcp"},
            {"alpha": [0.2], "method": "average"},
            {"alpha": [0.2], "method": "r-dcp", "options": {"bins": 32}},
            {"alpha": [0.1, 0.2], "method": "local"},
            {"alpha": [0.1, 0.2], "method": "fedcp-qq"},
            {"alpha": [0.15], "whole_cost": True},
            {"alpha": [0.15, 0.3], "method": "h-dcp", "options": {"bins": 30}, "whole_cost": True},
        ],
        kind="draws",
        number=3,
        data={"form": "list", "values": "unit", "sizes": {"from": 8, "to": 25}},
    )


def methods(book):
    """Every other method, with options, levels, mixtures and faults."""
    few = {"values": "unit", "sizes": {"from": 10, "to": 30}}
    book.each(
        "q-dcp",
        [
            {"options": {"rounds": 60}},
            {"options": {"rounds": 60, "s0": "min", "start": "zeros"}},
            {"options": {"rounds": 40, "s0": 0.7, "epsilon0": 0.2, "bound": "paper"}},
            {"options": {"rounds": 60, "kappa": 500.0, "mu": 100.0, "wire": 32}},
            {"options": {"rounds": 60, "certify": True, "aggregate": "tree"}},
            {"options": {"rounds": 60, "certify": True, "aggregate": "tree"}, "mixture": "equal"},
            {"options": {"rounds": 100, "continuation": 4, "aggregate": "tree"}, "alpha": [0.1, 0.2]},
            {"options": {"rounds": 60, "c": 1.0, "b": 2.0, "averaging": 20}, "mixture": "paper", "rank_rule": "ghost"},
            {"options": {"rounds": 60, "asynchronous": True}, "faults": {"loss": 0.2, "seed": 4}},
            {"options": {"rounds": 60, "asynchronous": True}, "faults": {"activation": 0.7, "links": 0.8, "seed": 5}},
            {"options": {"rounds": 40, "asynchronous": True, "counting": 80}, "mixture": "given"},
            {"options": {"rounds": 30, "spectrum": "estimated"}, "alpha": [0.3]},
        ],
        method="q-dcp",
        alpha=0.1,
        data=few,
    )
    book.each(
        "h-dcp",
        [
            {"options": {"bins": 100}},
            {"options": {"rounds": 15, "bins": 50}},
            {"options": {"rounds": 40, "bins": 50, "range": [0.0, 1.0], "bound": "row"}},
            {"options": {"rounds": 60, "bins": 20, "bound": "paper", "rounding": False}},
            {"options": {"bins": 50, "consensus": "chebyshev"}},
            {"options": {"bins": 50, "consensus": "finite-time"}},
            {"options": {"bins": 50, "weights": "metropolis", "eta": 0.8}},
            {"options": {"bins": 50, "weights": "max-degree", "wire": 32}},
            {"options": {"bins": 50, "consensus": "projection", "rounds": 60}},
            {"options": {"bins": 50, "consensus": "projection", "rounds": 200}, "faults": {"loss": 0.2, "seed": 4}},
            {
                "options": {"bins": 50, "consensus": "projection", "rounds": 120},
                "faults": {"activation": 0.8, "links": 0.9, "seed": 6},
            },
            {"options": {"bins": 40}, "mixture": "equal"},
            {"options": {"bins": 40, "rounds": 30}, "mixture": "given", "rank_rule": "swap"},
            {"options": {"bins": 40}, "alpha": [0.1, 0.2, 0.3], "pac_confidence": 0.9},
            {"options": {"bins": 40, "spectrum": "estimated"}, "mixture": "paper"},
        ],
        method="h-dcp",
        alpha=0.1,
        data=few,
    )
    book.each(
        "r-dcp",
        [
            {},
            {"options": {"byzantine": 0, "bins": 64}},
            {"options": {"byzantine": 2, "bins": 64}},
            {"options": {"grid": "own", "bins": 32}},
            {"options": {"range": [0.0, 1.0], "cap": 40}},
            {"mixture": "equal"},
            {"mixture": "paper", "rank_rule": "ghost"},
            {"mixture": "given"},
            {"alpha": [0.1, 0.3]},
            {"faults": {"byzantine": [1], "attack": "all-low", "seed": 2}},
            {"faults": {"byzantine": [2], "attack": "all-high", "seed": 2}},
            {"faults": {"byzantine": [0, 3], "attack": "two-faced", "seed": 3}, "options": {"byzantine": 2}},
            {"faults": {"byzantine": [1], "attack": "size-lie", "seed": 3}, "options": {"cap": 40}},
            {"faults": {"byzantine": [1], "attack": "noise", "seed": 3}},
            {"faults": {"byzantine": [2], "attack": "mimicry", "seed": 3}, "mixture": "equal"},
        ],
        method="r-dcp",
        alpha=0.2,
        data=few,
    )
    book.each(
        "p-dcp",
        [
            {},
            {"options": {"grid": "logit"}},
            {"options": {"grid": "linear", "range": [0.0, 1.0], "width": 3}},
            {"options": {"aggregate": "flood"}},
            {"options": {"coalition": 2, "width": 15}},
            {"alpha": [0.1, 0.3]},
            {"score": "lac"},
            {"pac_confidence": 0.9},
        ],
        method="p-dcp",
        alpha=0.1,
        data=few,
    )
    book.each(
        "baseline",
        [{"alpha": alpha, "method": method} for method in ("cp", "fcp", "local") for alpha in (0.1, [0.2, 0.05])][1:],
        data=few,
    )
    book.each(
        "baseline",
        [
            {"method": "fedcp-qq"},
            {"method": "fedcp-qq", "alpha": [0.2, 0.3], "options": {"wire": 32}},
            {"method": "fedcp-qq", "data": {**few, "sizes": 12}},
            {"method": "wfcp"},
            {"method": "wfcp", "options": {"bins": 50, "range": [0.0, 1.0]}},
            {"method": "wfcp", "options": {"bins": 50, "noise": 0.002, "seed": 7}},
            {"method": "average"},
            {"method": "average", "options": {"averaging": 30, "wire": 32}, "alpha": [0.1, 0.4]},
        ],
        alpha=0.1,
        data=few,
    )


def engines(book):
    """Devices one by one over frames that get lost, in rounds and without; and two processes over MPI."""
    lossy = {"name": "loopback", "seed": 1, "loss": 0.15, "duplication": 0.2}
    quiet = {"name": "loopback", "seed": 2}
    asynchronous = {"name": "loopback", "seed": 3, "loss": 0.1, "mode": "asynchronous"}
    few = {"form": "list", "values": "spread", "sizes": {"from": 5, "to": 25}}
    book.each(
        "loopback",
        [
            {"engine": lossy},
            {"engine": quiet, "mixture": "equal"},
            {"engine": lossy, "mixture": "given", "rank_rule": "swap"},
            {"engine": quiet, "alpha": [0.1, 0.3], "pac_confidence": 0.9},
            {"engine": lossy, "options": {"schedule": "top-k", "aggregate": "flood"}},
            {"engine": quiet, "options": {"schedule": "count", "aggregate": "tree"}},
            {"engine": quiet, "method": "q-dcp", "options": {"rounds": 20}},
            {"engine": lossy, "method": "h-dcp", "options": {"bins": 30, "rounds": 15}},
            {"engine": quiet, "method": "h-dcp", "options": {"bins": 30}, "mixture": "equal"},
            {"engine": quiet, "method": "r-dcp", "options": {"bins": 64}},
            {"engine": quiet, "method": "p-dcp"},
            {"engine": lossy, "method": "fcp"},
            {"engine": quiet, "method": "cp"},
            {"engine": quiet, "method": "wfcp", "options": {"bins": 30}},
            {"engine": quiet, "method": "average"},
            {"engine": quiet, "method": "local"},
            {"engine": asynchronous},
            {"engine": asynchronous, "mixture": "equal"},
        ],
        alpha=0.2,
        data=few,
        topology="grid",
        devices=6,
    )
    mpi = {"name": "mpi", "ranks": 2}
    book.each(
        "mpi",
        [
            {"alpha": 0.1},
            {"alpha": [0.1, 0.2], "groups": {"form": "labels", "names": ["a", "b"]}},
            {"alpha": 0.2, "weights": {"each": "eighths", "bound": 2.0}},
            {"alpha": 0.2, "method": "h-dcp", "options": {"bins": 30}},
            {
                "kind": "control",
                "alpha": 0.2,
                "mixture": "equal",
                "losses": {"form": "grid", "lambdas": [0.0, 0.5, 1.0], "ends": True},
            },
            {"kind": "p_values", "tests": {"number": 6}, "options": {"aggregate": "tree"}},
        ],
        engine=mpi,
        data={"form": "list", "sizes": {"from": 5, "to": 30}},
    )


def recorded_calls():
    """Return all recorded calls, in order."""
    book = Book()
    for family in (plain, levels_and_groups, shifts, sides_and_centres, losses, counting, draws, methods, engines):
        family(book)
    return book.calls


CALLS = recorded_calls()
