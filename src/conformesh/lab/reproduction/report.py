"""The report: one self-contained HTML page with every figure, table, setting and verdict."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from conformesh.files.atomic_writes import write_file
from conformesh.lab.reproduction.curves import Curves
from conformesh.lab.reproduction.verdicts import JOINT_ERROR, Verdict

if TYPE_CHECKING:
    from conformesh.lab.reproduction.experiments import Experiment

_CSS = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1, h2 { line-height: 1.2; } h2 { margin-top: 3rem; border-top: 1px solid #8886; padding-top: 1.2rem; }
img { max-width: 100%; background: white; border-radius: 4px; }
table { border-collapse: collapse; margin: .6rem 0; font-size: 13px; }
th, td { padding: .15rem .6rem; text-align: right; border-bottom: 1px solid #8883; }
th:first-child, td:first-child, td.words { text-align: left; }
.agrees { color: #1a7f37; font-weight: 600; } .differs { color: #b35900; font-weight: 600; }
.synthetic { background: #b3590022; padding: .6rem 1rem; border-radius: 4px; }
details { margin: .5rem 0; } summary { cursor: pointer; }
"""


@dataclass(frozen=True, eq=False)
class ReportSection:
    """One experiment in the report: its pictures by kind of scores, and curves and verdict by (scores, variant)."""

    experiment: Experiment
    data: str
    pictures: dict[str, Path]
    curves: dict[tuple[str, str], Curves]
    verdicts: dict[tuple[str, str], Verdict]


@dataclass(frozen=True)
class ReportFacts:
    """The provenance of the results."""

    command: str
    version: str
    seed: int
    draws: str
    machine: str
    seconds: float
    made: str
    data: dict[str, str] = field(default_factory=dict)
    synthetic: bool = False
    computed: int = 0
    points: int = 0


def write_reproduction_report(path: Path, sections: Sequence[ReportSection], provenance: ReportFacts) -> None:
    """Write the page."""
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width'><title>conformesh: the paper, reproduced</title>",
        f"<style>{_CSS}</style></head><body>",
        "<h1>Q-DCP and H-DCP: the published results, reproduced</h1>",
        _about(provenance),
        _overview(sections),
        *(_section(section) for section in sections),
        "</body></html>",
    ]
    write_file(path, "\n".join(parts))


def _about(provenance: ReportFacts) -> str:
    facts = {
        "command": provenance.command,
        "version": f"conformesh {provenance.version}",
        "seed": f"{provenance.seed}, {provenance.draws} draws",
        "machine": provenance.machine,
        "time": f"{provenance.seconds:.0f} s, {provenance.computed} of {provenance.points} points computed in this run",
        "made": provenance.made,
        **{f"data: {name}": words for name, words in provenance.data.items()},
    }
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td class='words'>{escape(words)}</td></tr>" for name, words in facts.items()
    )
    warning = (
        "<p class='synthetic'><b>Synthetic data.</b> Outputs marked synthetic come from no real model: they show that "
        "everything runs, and how the methods compare, but they cannot agree with published points. Give real outputs "
        "with <code>--data</code>.</p>"
        if provenance.synthetic
        else ""
    )
    return (
        f"{warning}<p>Each item runs twice: <b>as written</b> follows the paper's text, <b>as released</b> the "
        "conventions of the code behind the published figures; and with two scores, 1 - logit (which the figures use) "
        "and 1 - softmax confidence (which the text describes). Lines are means over draws, bands mean ± 1.96 "
        "std/√draws. Black: pooled CP, exact FCP at a server, and E-DCP, which finds FCP's threshold without one.</p>"
        "<p>An item agrees where chance explains every difference from the published means, with "
        f"{JOINT_ERROR:.0%} error over all points together; how many points are met is counted beside it. Where only "
        "a picture was printed, as written is compared with as released, and every sentence of the paper must hold. "
        "Where the printed bound of H-DCP reaches no level, both take the paper's level M, which is every label; the "
        "library's own <code>--bound paper</code> returns the largest score over an agreed range, and says so.</p>"
        f"<table>{rows}</table>"
    )


def _overview(sections: Sequence[ReportSection]) -> str:
    kind = next(scores for section in sections for scores, _ in section.verdicts)
    rows = []
    for section in sections:
        cells = "".join(
            f"<td class='words'>{_badge(verdict)}</td>"
            for (scores, _), verdict in section.verdicts.items()
            if scores == kind
        )
        anchor = f"<a href='#{section.experiment.name}'>{escape(section.experiment.item)}</a>"
        rows.append(f"<tr><td>{anchor}</td><td class='words'>{escape(section.experiment.title)}</td>{cells}</tr>")
    head = "<tr><th>item</th><th></th><th>as written</th><th>as released</th></tr>"
    return f"<h2>Overview ({kind})</h2><table>{head}{''.join(rows)}</table>"


def _badge(verdict: Verdict) -> str:
    word = "agrees" if verdict.agrees else "differs"
    return f"<span class='{word}'>{word}</span>"


def _section(section: ReportSection) -> str:
    experiment = section.experiment
    parts = [
        f"<h2 id='{experiment.name}'>{escape(experiment.item)}. {escape(experiment.title)}</h2>",
        f"<p>{escape(experiment.about)} Data: {escape(section.data)}.</p>",
    ]
    for scores, picture in section.pictures.items():
        encoded = base64.b64encode(picture.read_bytes()).decode()
        parts.append(f"<h3>{escape(scores)}</h3>")
        parts.append(f"<img alt='{escape(experiment.title)}, {scores}' src='data:image/png;base64,{encoded}'>")
        for (kind, variant), verdict in section.verdicts.items():
            if kind == scores:
                parts.append(_verdict(variant, verdict))
        for (kind, variant), curves in section.curves.items():
            if kind == scores:
                parts.append(_numbers_table(variant, curves))
    return "\n".join(parts)


def _verdict(variant: str, verdict: Verdict) -> str:
    words = str(verdict)
    first, rest = words.split(" ", 1) if " " in words else (words, "")
    findings = "".join(
        f"<li>{'✓' if judged.holds else '✗'} {escape(judged.says)} <small>{escape(judged.figures)}</small></li>"
        for judged in verdict.judged
    )
    return (
        f"<p><b>{escape(variant.replace('-', ' '))}</b>: <span class='{first}'>{first}</span> {escape(rest)}</p>"
        f"<ul>{findings}</ul>"
    )


def _numbers_table(variant: str, curves: Curves) -> str:
    """Return the table of a case: a row per x, coverage and size of every line."""
    lines = curves.lines()
    xs = sorted({x for line in lines for x in curves.xs(line)})
    head = "".join(f"<th>{escape(line)}</th>" for line in lines)
    rows = []
    for x in xs:
        cells = []
        for line in lines:
            value = curves.at(line, x) if x in curves.xs(line) else None
            cells.append("<td></td>" if value is None else f"<td>{value.coverage:.3f} / {value.size:.2f}</td>")
        rows.append(f"<tr><td>{x:g}</td>{''.join(cells)}</tr>")
    return (
        f"<details><summary>numbers, {escape(variant.replace('-', ' '))}: coverage / labels in a set</summary>"
        f"<table><tr><th>x</th>{head}</tr>{''.join(rows)}</table></details>"
    )
