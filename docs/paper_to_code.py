"""From the paper to the code: which function an equation became, and which tests speak of it.

Found in the source are the tags ``[Wen2025] Eq. (26)``, ``[Wen2025] Algorithm 1``, ``[Wen2025] Figure 2`` and so on. A
tag belongs to the innermost function or class around it, or to the module. Its tests are those that carry the same tag
or use that function; where there are none, the test file of its module, or those that import it, or that of its folder.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

ITEMS: dict[str, str] = {
    "Section 2": "the problem: K devices with n_k scores each, a connected graph, its incidence matrices",
    "Eq. (1)": "the test point comes from a mixture of the devices' distributions",
    "Eq. (2)": "the guarantee: coverage at least 1 - alpha",
    "Eq. (3)": "mixture weights proportional to n_k + 1",
    "Eq. (4)": "the set of split conformal prediction",
    "Eq. (5)": "a quantile as the minimiser of the pinball loss",
    "Eq. (6)": "the pinball loss",
    "Section 3.2": "what is known for a server: FedCP-QQ, FCP and WFCP; the rank for K devices",
    "Eq. (7)": "quantile regression over all devices",
    "Eq. (8)": "the pinball loss, smoothed and regularised",
    "Eq. (9)": "its sum over the devices, with minimiser s-hat",
    "Eq. (10)": "the same with one copy per device and agreement along edges",
    "Eq. (11)": "augmented Lagrangian",
    "Eq. (12)": "the three ADMM updates",
    "Algorithm 1": "Q-DCP",
    "Eq. (13)": "the prediction set of Q-DCP",
    "Eq. (14)": "its threshold: the average plus the error terms",
    "Section 4.3": "guarantees of Q-DCP; singular values of the incidence matrices",
    "Eq. (15)": "the error splits into convergence and bias",
    "Assumption 4.1": "s0 lies within epsilon0 of the quantile",
    "Proposition 4.2": "bound of the bias",
    "Eq. (16)": "the bias of smoothing and regularising",
    "Proposition 4.3": "linear convergence of ADMM",
    "Eq. (17)": "epsilon^(T), the unfinished convergence",
    "Eq. (18)": "delta, the rate of ADMM",
    "Theorem 4.4": "coverage of Q-DCP",
    "Assumption 5.1": "bounded scores",
    "Eq. (19)": "the quantiser",
    "Eq. (20)": "a device's histogram",
    "Eq. (21)": "the histogram of all scores",
    "Eq. (22)": "the quantile of the quantised scores",
    "Eq. (23)": "one consensus update",
    "Algorithm 2": "H-DCP",
    "Eq. (24)": "the prediction set of H-DCP",
    "Eq. (25)": "a device's bin, with the correction epsilon",
    "Section 5.2": "guarantee of H-DCP; the spectral gap can be estimated without a map",
    "Theorem 5.2": "coverage of H-DCP",
    "Eq. (26)": "epsilon of H-DCP",
    "Section 6.1": "setting of the experiments: the data, its division among devices, the draws",
    "Section 6.2": "results for Q-DCP",
    "Figure 2": "Q-DCP against the coverage level, Assumption 4.1 taken as satisfied",
    "Figure 3": "Q-DCP against the coverage level, Assumption 4.1 not satisfied",
    "Section 6.3": "results for H-DCP; the consensus weights used in the experiments",
    "Figure 4": "H-DCP against the coverage level",
    "Section 6.4": "Q-DCP and H-DCP compared at the same communication load",
    "Figure 5": "coverage and set size against the communication load",
    "Appendix A.1": "proof of Proposition 4.2, the bias",
    "Appendix A.2": "proof of Theorem 4.4, coverage of Q-DCP",
    "Appendix A.3": "proof of Theorem 5.2, coverage of H-DCP",
    "Appendix B.1": "comparison with the state of the art on a star",
    "Table 1": "every method on a star",
    "Appendix B.2": "convergence of Q-DCP and H-DCP",
    "Figure 6": "Q-DCP against the rounds",
    "Figure 7": "H-DCP against the rounds",
    "Appendix B.3": "larger networks",
    "Figure 8": "Q-DCP on 100 devices",
    "Figure 9": "H-DCP on 100 devices",
    "Figure 10": "Q-DCP on random graphs, epsilon0 = 1",
    "Figure 11": "Q-DCP on random graphs, epsilon0 = 0.1",
    "Appendix B.4": "ablation studies for Q-DCP",
    "Figure 12": "Q-DCP against kappa",
    "Figure 13": "Q-DCP against mu",
    "Figure 14": "Q-DCP against mu, poor s0 and epsilon0",
    "Appendix B.5": "ablation study for H-DCP",
    "Figure 15": "H-DCP against the quantisation levels",
    "Appendix B.6": "PathMNIST",
    "Figure 16": "Q-DCP on PathMNIST",
    "Figure 17": "H-DCP on PathMNIST",
}
PART_OF = {  # where an item has no tag of its own: the item whose code holds it
    **dict.fromkeys(["Eq. (1)", "Eq. (2)", "Eq. (3)"], "Section 3.2"),
    **dict.fromkeys(["Eq. (5)", "Eq. (6)", "Eq. (7)", "Eq. (8)"], "Eq. (9)"),
    **dict.fromkeys([f"Eq. ({n})" for n in (10, 11, 12, 13, 14, 15)], "Algorithm 1"),
    **dict.fromkeys(["Assumption 4.1", "Theorem 4.4"], "Algorithm 1"),
    **dict.fromkeys([f"Eq. ({n})" for n in (20, 21, 22, 24)], "Algorithm 2"),
    "Assumption 5.1": "Eq. (19)",
    "Section 2": "Algorithm 1",
    "Appendix A.1": "Proposition 4.2",
    "Appendix A.2": "Theorem 4.4",
    "Appendix A.3": "Theorem 5.2",
}
REFERENCE = (
    r"(?:Eqs?\.\s\(\d+\)(?:(?:-|–|\sto\s)\(\d+\))?"
    r"|(?:Algorithm|Theorem|Proposition|Assumption|Section|Figure|Table)\s\d+(?:\.\d)?|Appendix\s[AB]\.\d)"
)
TAG = re.compile(rf"\[Wen2025\]((?:,?\s+(?:and\s+)?{REFERENCE})+)")
MOST = 5  # tests named one by one


@dataclass(frozen=True)
class Place:
    """Where a tag stands: a module, and the function or class in it, if any."""

    path: Path
    name: str = ""

    def shown(self, root: Path) -> str:
        """Return the dotted name of code inside the package, or the file and function of a test."""
        inside = self.path.relative_to(root)
        if inside.parts[0] != "src":
            return f"`{'/'.join(inside.parts[1:])}" + (f"::{self.name}`" if self.name else "`")
        return f"`{'.'.join(filter(None, [self.module(root), self.name]))}`".replace("`conformesh.", "`")

    def module(self, root: Path) -> str:
        """Return the dotted name of the module."""
        return ".".join(self.path.relative_to(root / "src").with_suffix("").parts).removesuffix(".__init__")


def page(root: Path) -> str:
    """Return the table: item, what it is, code, tests."""
    code, tests = tags_in(root / "src"), tags_in(root / "tests", but="test_docs.py")  # which has made-up tags
    unknown = sorted({*code, *tests} - {*ITEMS})
    if unknown:
        raise ValueError(
            f"docs/paper_to_code.py does not know what {', '.join(unknown)} of the paper is; add it to ITEMS"
        )
    users = _users(root / "tests")
    lines = ["| in the paper | what it is | code | tests |", "| --- | --- | --- | --- |"]
    for item, what in ITEMS.items():
        places = code.get(item, [])
        where = ", ".join(place.shown(root) for place in places) or "—"
        if not places and item in PART_OF:
            where, places = f"see {PART_OF[item]}", code.get(PART_OF[item], [])
        checked = [place.shown(root) for place in tests.get(item, [])]
        for place in places:
            checked += [test for test in _tests_of(place, root, users) if test not in checked]
        more = f" and {len(checked) - MOST} more" if len(checked) > MOST else ""
        lines.append(f"| {item} | {what} | {where} | {', '.join(checked[:MOST])}{more} |")
    return "\n".join(lines)


def tags_in(folder: Path, but: str = "") -> dict[str, list[Place]]:
    """Return every tagged item with the places that carry it, leaving out one file."""
    found: dict[str, list[Place]] = {}
    for path in sorted(path for path in folder.rglob("*.py") if path.name != but):
        text = path.read_text(encoding="utf-8")
        tags = [*TAG.finditer(text)]
        tree = ast.parse(text) if tags else ast.Module([], [])
        for tag in tags:
            place = Place(path, _innermost(tree, text[: tag.start()].count("\n") + 1))
            for item in _items(tag[1]):
                if place not in found.setdefault(item, []):
                    found[item].append(place)
    return found


def _items(references: str) -> list[str]:
    items = []
    for words in re.findall(REFERENCE, references):
        if words.startswith("Eq"):
            first, *last = map(int, re.findall(r"\d+", words))
            items += [f"Eq. ({number})" for number in range(first, (last or [first])[0] + 1)]
        else:
            items.append(" ".join(words.split()))
    return items


def _innermost(tree: ast.Module, line: int) -> str:
    """Return the dotted name of the function or class around a line; empty for the module."""
    names, body = [], tree.body
    while True:
        around = [
            node
            for node in body
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.lineno <= line <= (node.end_lineno or 0)
        ]
        if not around:
            return ".".join(names)
        names.append(around[0].name)
        body = around[0].body


def _users(tests: Path) -> dict[Path, dict[str, set[str]]]:
    """Return, for each test file, the names that each of its tests uses, and under "" those it imports."""
    users = {}
    for path in sorted(tests.rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        modules = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        modules |= {
            f"{node.module}.{name.name}"
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for name in node.names
        }
        users[path] = {"": modules} | {
            node.name: {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
            for node in tree.body
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        }
    return users


def _tests_of(place: Place, root: Path, users: dict[Path, dict[str, set[str]]]) -> list[str]:
    module = place.module(root)
    importing = {path: names for path, names in users.items() if module in names[""]}
    direct = [
        Place(path, test).shown(root)
        for path, names in importing.items()
        for test, used in names.items()
        if test and place.name and place.name in used
    ]
    if direct:
        return direct
    files = (
        _mirror(place.path, root)
        or [*importing]
        or [test for user in _importers(module, root) for test in _mirror(user, root)]
        or _mirror(place.path.with_name(f"{place.path.parent.name}.py"), root)
    )
    return [Place(path).shown(root) for path in files]


def _mirror(path: Path, root: Path) -> list[Path]:
    """Return the test file that stands where the module stands, if there is one."""
    mirror = root / "tests" / path.relative_to(root / "src" / "conformesh").with_name(f"test_{path.name}")
    return [mirror] if mirror.exists() else []


def _importers(module: str, root: Path) -> list[Path]:
    """Return the modules of the package that import this one."""
    line = re.compile(rf"^from {re.escape(module)} import", re.MULTILINE)
    return [path for path in sorted((root / "src").rglob("*.py")) if line.search(path.read_text(encoding="utf-8"))]
