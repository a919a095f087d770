"""The pictures and the report: everything is there, says where it comes from, and is the same twice."""

import base64
import json
import re
import shutil
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from conformesh.lab.datasets.synthetic import synthetic_outputs
from conformesh.lab.reproduction.cases import SCORE_KINDS, Case
from conformesh.lab.reproduction.curves import VARIANTS
from conformesh.lab.reproduction.experiments import EXPERIMENTS, Axis, get_experiment
from conformesh.lab.reproduction.figures import LINE_LOOKS, curve_style, draw_experiment
from conformesh.lab.reproduction.findings import Finding
from conformesh.lab.reproduction.paper_scores import OutputSource, paper_score_sources
from conformesh.lab.reproduction.report import ReportFacts, ReportSection, write_reproduction_report
from conformesh.lab.reproduction.reproduction import ReproductionRequest, _draws_in_words, reproduce_experiments
from conformesh.lab.reproduction.verdicts import JudgedFinding, PointComparison, Verdict
from tests.lab.reproduction.handmade import curves, value
from tests.lab.reproduction.test_verdicts import THEIRS

SYNTHETIC = OutputSource("cifar100")
NAMES = ("h-dcp-alpha", "star-table")  # a figure and a table; drawings below have other axes
STAMPED = NAMES[1:]
REQUEST = ReproductionRequest(quick=True, draws=2, seed=3)

pytestmark = pytest.mark.xdist_group("figures")  # they share what is drawn


@pytest.fixture(scope="module")
def drawn():
    """Remember every figure that is saved as a PDF, by its folder and name."""
    figures, original = {}, Figure.savefig

    def remember(self, path, **extra):
        if isinstance(path, Path):
            figures[path.parent.name, path.stem] = self
        original(self, path, **extra)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", remember)
        yield figures


@pytest.fixture(scope="module")
def real(drawn, small_sources, tmp_path_factory):
    """Two experiments on outputs that do not say that they are synthetic."""
    return reproduce_experiments(
        list(map(get_experiment, NAMES)), small_sources, tmp_path_factory.mktemp("x") / "real", REQUEST, jobs=1
    )


@pytest.fixture(scope="module")
def invented(drawn, tmp_path_factory):
    """One of them on outputs that say so."""
    folder, outputs = tmp_path_factory.mktemp("x"), synthetic_outputs(2000, 100)
    np.savez(folder / "made-up.npz", logits=outputs.values, labels=outputs.labels, synthetic=True)
    sources = paper_score_sources([str(folder / "made-up.npz")])
    return reproduce_experiments(list(map(get_experiment, STAMPED)), sources, folder / "invented", REQUEST, jobs=1)


def hollow(axis):
    """The marks of published points in a panel: hollow, with data."""
    return [
        line
        for line in axis.lines
        if line.get_linestyle() == "None" and line.get_markerfacecolor() == "none" and len(line.get_xdata())
    ]


# --- pictures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scores", SCORE_KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_pdf_and_png_are_written(real, name, scores):
    stem = real.folder / f"{name}-{scores}"
    assert stem.with_suffix(".pdf").read_bytes().startswith(b"%PDF-")
    image = imread(stem.with_suffix(".png"))[:, :, :3]
    assert min(image.shape[:2]) > 500
    assert (image == 1).all(axis=2).mean() > 0.4  # on white
    assert image.std() > 0.05


def panels(figure):
    """The panels of a figure by (variant, measure); a figure against the level has a close-up of its coverage."""
    measures = ("coverage", "excess", "size") if len(figure.axes) == 6 else ("coverage", "size")
    keys = [(variant, measure) for variant in VARIANTS for measure in measures]
    return dict(zip(keys, figure.axes, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_panels_are_labelled(real, drawn, name):
    figure, experiment = drawn["real", f"{name}-logits"], get_experiment(name)
    in_words = {"coverage": "coverage", "excess": "coverage minus level", "size": "set size"}
    on_the_axis = {
        "coverage": "coverage on test rows",
        "excess": "coverage - (1 - α)",
        "size": "labels in a set, of 100",
    }
    assert len(figure.axes) == (4 if experiment.axis is None else 6)
    for (variant, measure), panel in panels(figure).items():
        assert panel.get_title(loc="left") == f"{variant.replace('-', ' ')}: {in_words[measure]}"
        if experiment.axis is None:
            assert panel.get_xlabel() == on_the_axis[measure]
        else:
            assert (panel.get_xlabel(), panel.get_ylabel()) == (experiment.axis.label, on_the_axis[measure])
    words = figure.get_suptitle()
    assert all(word in words for word in (experiment.item, experiment.title, "hundred.npz", "1 - logit"))
    assert "confidence" in drawn["real", f"{name}-confidences"].get_suptitle()


@pytest.mark.parametrize("name", NAMES)
def test_every_line_is_drawn_and_in_the_legend(real, drawn, name):
    figure = drawn["real", f"{name}-logits"]
    experiment = get_experiment(name)
    lines = {point.line for point in experiment.grid(Case(name, "as-written", "logits", SYNTHETIC, quick=True))}
    legend = legend_of(figure)
    if experiment.axis is None:
        assert [tick.get_text() for tick in figure.axes[0].get_yticklabels()] == [*experiment_lines(experiment)]
        assert legend.count("here") == 1
    else:
        assert {*legend} >= lines
        for axis in figure.axes:
            assert {line.get_label() for line in axis.lines} >= lines


def legend_of(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def experiment_lines(experiment):
    return dict.fromkeys(
        point.line for point in experiment.grid(Case(experiment.name, "as-written", "logits", SYNTHETIC))
    )


def test_points_are_drawn_where_the_numbers_are(real, drawn):
    section = real.sections[NAMES.index("h-dcp-alpha")]
    for (variant, measure), panel in panels(drawn["real", "h-dcp-alpha-logits"]).items():
        found = section.curves["logits", variant]
        lines = [line for line in panel.lines if line.get_label() in found.lines()]
        assert len(lines) == 8
        for line in lines:
            values, xs = found.values(line.get_label()), found.xs(line.get_label())
            expected = {
                "coverage": [each.coverage for each in values],
                "excess": [each.coverage - x for each, x in zip(values, xs, strict=True)],
                "size": [each.size for each in values],
            }
            np.testing.assert_array_equal(line.get_xdata(), xs)
            np.testing.assert_allclose(line.get_ydata(), expected[measure], rtol=1e-15, atol=1e-15)


@pytest.mark.parametrize("name", STAMPED)
@pytest.mark.parametrize("scores", SCORE_KINDS)
def test_synthetic_pictures_say_so(real, invented, drawn, name, scores):
    def stamps(kind):
        return [text.get_text() for text in drawn[kind, f"{name}-{scores}"].texts].count("SYNTHETIC DATA")

    assert (stamps("real"), stamps("invented")) == (0, 1)
    assert real.provenance.synthetic is False
    assert invented.provenance.synthetic is True


def test_published_points_appear_for_real_logits_only(real, invented, drawn):
    for axis in drawn["real", "h-dcp-alpha-logits"].axes:
        assert len(hollow(axis)) == 6  # five graphs and CP
        assert all(len(line.get_xdata()) == 9 for line in hollow(axis))
    for axis in drawn["real", "star-table-logits"].axes:
        (marks,) = hollow(axis)
        assert len(marks.get_xdata()) == 4
    without = [("real", f"{name}-confidences") for name in NAMES]
    without += [("invented", f"{name}-{scores}") for name in STAMPED for scores in SCORE_KINDS]
    for key in without:
        assert not any(hollow(axis) for axis in drawn[key].axes), key


def test_published_sizes_are_shown_in_labels(real, drawn):
    """They are printed per class; the axis counts labels of 100."""
    expected = {"size": [11.35, 12.16, 11.98, 45.32], "coverage": [0.913, 0.92, 0.918, 0.996]}
    for (_, measure), panel in panels(drawn["real", "star-table-logits"]).items():
        np.testing.assert_allclose(hollow(panel)[0].get_xdata(), expected[measure])
    for (_, measure), panel in panels(drawn["real", "h-dcp-alpha-logits"]).items():
        torus = hollow(panel)[3].get_ydata()[-1]
        assert torus == pytest.approx({"size": 12.08, "coverage": 0.91852, "excess": 0.01852}[measure])


LEVELS, ROUNDS, BITS = Axis("coverage level 1 - α"), Axis("rounds T"), Axis("bits", log=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "axis"),
    [
        ((0.0, 0.0, 0.0), LEVELS),
        ((0.0, 0.02, 100.0), LEVELS),
        ((0.0, 0.02, 100.0), None),
        ((100.0, 100.0, 100.0), ROUNDS),
        ((1.0, 5.0, 9.0), BITS),
    ],
    ids=["empty", "from empty to full", "table", "full", "few"],
)
def test_extreme_sizes_can_be_drawn(drawn, tmp_path, sizes, axis):
    """Empty sets, full sets and points of one draw, without a warning and inside the axes."""
    classes = 9 if max(sizes) == 9 else 100
    places = (10, 100, 1000) if axis in {ROUNDS, BITS} else (0.1, 0.5, 0.9)
    points = {x: value(s / 100, s, classes=classes, draws=1) for x, s in zip(places, sizes, strict=True)}
    found = curves({"chain": points, "CP": {0.9: value(0.9, 0.4 * sizes[1], classes=classes)}})
    experiment = replace(get_experiment("star-table"), name="nowhere", axis=axis)
    png = draw_experiment(experiment, "logits", dict.fromkeys(VARIANTS, found), "hand-made", True, tmp_path / "extreme")
    assert png.stat().st_size > 5_000
    panel = panels(drawn[tmp_path.name, "extreme"])["as-written", "size"]
    low, high = panel.get_xlim() if axis is None else panel.get_ylim()
    shown = sizes[-1:] if axis is None else sizes
    assert all(low <= size <= high for size in shown)
    assert (panel.get_xscale() == "log") == (axis == BITS)


def test_equal_sizes_everywhere_can_be_drawn(tmp_path):
    found = curves({"chain": {10: value(1.0, 100.0), 99: value(1.0, 100.0)}, "CP": {0.9: value(1.0, 100.0)}})
    experiment = replace(get_experiment("q-dcp-convergence"), axis=ROUNDS)
    draw_experiment(experiment, "logits", dict.fromkeys(VARIANTS, found), "full", True, tmp_path / "full")


def test_the_legend_names_published_points_only_where_they_are(real, invented, drawn):
    for name in NAMES:
        assert "published" in legend_of(drawn["real", f"{name}-logits"])
    for key in (
        ("real", "h-dcp-alpha-confidences"),
        ("real", "star-table-confidences"),
        ("invented", "star-table-logits"),
    ):
        assert "published" not in legend_of(drawn[key]), key


def test_every_line_of_every_experiment_has_a_look():
    """Two lines of a figure never look the same."""
    for name in EXPERIMENTS:
        experiment = get_experiment(name)
        if experiment.axis is None:
            continue
        looks = [curve_style(line) for line in experiment_lines(experiment)]
        assert max(Counter(map(str, looks)).values()) == 1, name
    assert all(curve_style(line) is look for line, look in LINE_LOOKS.items())
    assert curve_style("H-DCP, f = 16") != curve_style("H-DCP, f = 64") != curve_style("Q-DCP 1, f = 64")


# --- what is written --------------------------------------------------------------------------------------------------


def test_tables_rows_and_provenance_are_written(real):
    rows = pl.read_parquet(real.folder / "rows.parquet")
    provenance = json.loads((real.folder / "provenance.json").read_text())
    assert provenance["computed"] == provenance["points"] == len([*(real.folder / "cache").rglob("*.parquet")])
    assert (provenance["seed"], provenance["draws"], provenance["synthetic"]) == (3, "2", False)
    assert provenance["data"].keys() == {"cifar100"}  # what was not used is not named
    assert provenance["data"]["cifar100"].startswith("hundred.npz, sha256 ")
    for name in NAMES:
        table = pl.read_csv(real.folder / f"{name}.csv")
        mine = rows.filter(pl.col("experiment") == name)
        groups = mine.group_by("variant", "scores", "line", "x", maintain_order=True).agg(
            pl.col("size").mean(), pl.col("size").std(ddof=0).alias("std")
        )
        assert len(table) == len(groups)
        np.testing.assert_allclose(table["size"], groups["size"], rtol=1e-5)
        np.testing.assert_allclose(table["size_std"], groups["std"], rtol=1e-5, atol=1e-12)
        assert (table["draws"] == 2).all()


def test_draws_in_words():
    every = [get_experiment(name) for name in EXPERIMENTS]
    assert _draws_in_words(every, ReproductionRequest()) == "10; 40 for q-dcp-alpha, h-dcp-alpha, star-table"
    assert _draws_in_words(every[:1], ReproductionRequest()) == "40"
    assert _draws_in_words(every, ReproductionRequest(draws=3)) == "3"


@pytest.mark.slow
def test_a_second_reproduction_computes_nothing_and_writes_the_same(real, small_sources, tmp_path):
    """No dates and no random names are in tables and pictures: the same numbers give the same bytes."""
    shutil.copytree(real.folder / "cache", tmp_path / "cache")
    again = reproduce_experiments(
        [section.experiment for section in real.sections], small_sources, tmp_path, REQUEST, jobs=1
    )
    assert (again.provenance.computed, again.provenance.points) == (0, real.provenance.points)
    kept = [path for path in real.folder.iterdir() if path.suffix in {".png", ".pdf", ".csv"}]
    assert len(kept) == len(NAMES) * 5
    for path in kept:
        assert (tmp_path / path.name).read_bytes() == path.read_bytes(), path.name


# --- report -----------------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """What a browser would load, and what it would show; unbalanced tags are an error."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.sources, self.links, self.words, self._open = Counter(), [], [], [], []
        self.feed(text)
        self.close()
        assert self._open == []
        self.text = " ".join("".join(self.words).split())

    def handle_starttag(self, tag, attributes):
        self.tags[tag] += 1
        if tag not in {"meta", "img"}:
            self._open.append(tag)
        for name, given in attributes:
            assert not name.startswith("on"), name
            {"src": self.sources, "href": self.links}.get(name, []).append(given)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if not self._open or self._open[-1] != "style":
            self.words.append(data)
        else:
            assert "url(" not in data
            assert "@import" not in data


def test_the_report_is_one_file(real, invented):
    for found, names in ((real, NAMES), (invented, STAMPED)):
        text = found.report.read_text()
        page = Page(text)
        assert page.tags["img"] == len(names) * 2
        assert not {"script", "link", "iframe", "object"} & {*page.tags}
        assert "http" not in re.sub(r"base64,[^']*", "", text)
        pictures = [base64.b64decode(source.removeprefix("data:image/png;base64,")) for source in page.sources]
        assert pictures == [
            (found.folder / f"{name}-{scores}.png").read_bytes() for name in names for scores in SCORE_KINDS
        ]
        assert page.links == [f"#{name}" for name in names]
        assert all(f"id='{name}'" in text for name in names)


def test_the_report_has_every_verdict_finding_and_number(real):
    text = Page(real.report.read_text()).text
    for section in real.sections:
        assert section.verdicts.keys() == {(scores, variant) for scores in SCORE_KINDS for variant in VARIANTS}
        for (_, variant), verdict in section.verdicts.items():
            assert f"{variant.replace('-', ' ')}: {verdict}" in text
            for judged in verdict.judged:
                assert f"{'✓' if judged.holds else '✗'} {judged.says} {judged.figures}" in text
        for found in section.curves.values():
            for _, _, point in found:
                assert f"{point.coverage:.3f} / {point.size:.2f}" in text
    found = real.provenance
    for words in (found.machine, found.version, found.made, "3, 2 draws", *found.data.values()):
        assert " ".join(words.split()) in text


def test_the_report_says_what_is_synthetic(real, invented):
    assert "Synthetic data." not in Page(real.report.read_text()).text
    text = Page(invented.report.read_text()).text
    assert "Synthetic data." in text
    assert "made-up.npz" in text


def test_the_overview_has_verdicts_whatever_the_scores(tmp_path):
    (tmp_path / "p.png").write_bytes(b"picture")
    verdict, found = Verdict((), (JudgedFinding("a", True, "b"),)), curves({"chain": {0.9: value()}})
    keys = [("confidences", variant) for variant in VARIANTS]
    section = ReportSection(
        *(get_experiment("star-table"), "data", {"confidences": tmp_path / "p.png"}),
        *(dict.fromkeys(keys, found), dict.fromkeys(keys, verdict)),
    )
    about = ReportFacts("", "", 1, "1", "", 1.0, "", {}, False, 1, 1)
    write_reproduction_report(tmp_path / "report.html", [section], about)
    overview = (tmp_path / "report.html").read_text().split("<h2")[1]
    assert "Overview" in overview
    assert overview.count("<span class='agrees'>") == 2
    words = " ".join(Page((tmp_path / "report.html").read_text()).text.split())
    assert "with 1% error over all points together" in words
    assert "both take the paper's level M, which is every label" in words
    assert "(logits)" not in overview


def test_the_report_escapes_markup(tmp_path):
    nasty = "<script>alert('x')</script> & \"so\" <b>"
    experiment = replace(
        get_experiment("star-table"), title=nasty, about=nasty, item=nasty, findings=(Finding(nasty, lambda _: None),)
    )
    (tmp_path / "p.png").write_bytes(b"picture")
    verdict = Verdict(
        (PointComparison(THEIRS, 0.1, 0.1, False, False, 9.0, 4.0),), (JudgedFinding(nasty, False, nasty),), nasty
    )
    found = curves({nasty: {0.9: value()}})
    keys = [("logits", variant) for variant in VARIANTS]
    section = ReportSection(
        experiment, nasty, {"logits": tmp_path / "p.png"}, dict.fromkeys(keys, found), dict.fromkeys(keys, verdict)
    )
    about = ReportFacts(
        command=nasty,
        version=nasty,
        seed=1,
        draws="1",
        machine=nasty,
        seconds=1.0,
        made=nasty,
        data={nasty: nasty},
        synthetic=True,
        computed=1,
        points=1,
    )
    write_reproduction_report(tmp_path / "report.html", [section], about)
    text = (tmp_path / "report.html").read_text()
    page = Page(text)
    assert "<script" not in text
    assert "<b>" not in re.sub(r"<b>(Synthetic data\.|as written|as released)</b>", "", text)
    assert page.text.count(" ".join(nasty.split())) > 15
