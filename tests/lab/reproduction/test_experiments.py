"""Every entry of EXPERIMENTS: it is described and judged, and its grids are sound in all four cases."""

import inspect
import re
from collections import Counter
from itertools import pairwise

import pytest

from conformesh import METHODS, TOPOLOGIES
from conformesh.kernels.ranks import split_requirement
from conformesh.lab.reproduction import experiments
from conformesh.lab.reproduction.cases import LEVELS, SCORE_KINDS, Case, paper_method
from conformesh.lab.reproduction.curves import VARIANTS, published_points
from conformesh.lab.reproduction.experiments import EXPERIMENTS, get_experiment
from conformesh.lab.reproduction.paper_methods import PAPER_METHODS
from conformesh.lab.reproduction.paper_scores import PAPER_DATA, OutputSource, PaperScores, paper_score_sources
from conformesh.lab.reproduction.reproduction import ReproductionRequest
from conformesh.lab.sweeps.sources import build_cell_network
from conformesh.methods import make_options, requirement_of

CASES = [(variant, scores) for variant in VARIANTS for scores in SCORE_KINDS]


@pytest.fixture(params=EXPERIMENTS)
def experiment(request):
    return get_experiment(request.param)


def case_of(experiment, variant, scores, **more):
    return Case(experiment.name, variant, scores, OutputSource(experiment.data), **more)


def work(points):
    """How much there is to run, in rounds times draws times alphas; what needs none counts as one."""
    cells = [point.cell for point in points]
    return sum(dict(cell.method.options).get("rounds", 1) * len(cell.draws) * len(cell.alphas) for cell in cells)


def test_the_comment_above_says_where_the_paper_has_it(experiment):
    before, _, _ = inspect.getsource(experiments).partition(f'name="{experiment.name}",')
    comment = before[before.rindex("# [Wen2025] ") :]
    assert re.match(rf"# \[Wen2025\] (Section|Appendix) [6B]\.\d, {experiment.item}[:.,]", comment)
    assert re.search(r"\d+ s( a case)?\.\n    Experiment\($", comment.rstrip())


def test_it_is_described_and_judged(experiment):
    assert experiment.data in PAPER_DATA
    assert experiment.findings
    assert all(finding.says.endswith(".") for finding in experiment.findings)
    assert experiment.about.endswith(".")
    assert experiment.item.split()[0] in {"Figure", "Table"}
    assert {*experiment.remarks} <= {*VARIANTS, *(f"{variant}, {scores}" for variant, scores in CASES)}


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize(("variant", "scores"), CASES)
def test_points_are_well_formed(experiment, variant, scores, quick):
    case = case_of(experiment, variant, scores, draws=2 if quick else 10, seed=7, quick=quick)
    points = experiment.grid(case)
    shares = {"as-written": "equal", "as-released": "random"}[variant]
    for point in points:
        assert point.case == case
        assert point.cell.scores == PaperScores(OutputSource(experiment.data), scores, shares)
        assert point.cell.seed == 7
        assert all(0 < alpha < 1 for alpha in point.cell.alphas)
        assert {*point.cell.draws} <= {*range(case.draws)}
        assert point.cell.together
    keys = Counter(point.cell.key() for point in points)
    assert max(keys.values()) == 1
    # a place on a line belongs to one point, or to one point of each draw
    places = Counter(
        (point.line, point.x if point.x is not None else 1 - alpha, draw)
        for point in points
        for alpha in point.cell.alphas
        for draw in point.cell.draws
    )
    assert max(places.values()) == 1


@pytest.mark.parametrize(("variant", "scores"), CASES)
def test_graphs_exist_at_every_size(experiment, variant, scores):
    points = experiment.grid(case_of(experiment, variant, scores, draws=2))
    for spec, source in {(point.cell.network, point.cell.scores) for point in points}:
        assert spec.topology in TOPOLOGIES
        assert spec.devices <= PAPER_DATA[experiment.data][1]
        assert build_cell_network(spec, source, spec.seed).devices == spec.devices


@pytest.mark.parametrize(("variant", "scores"), CASES)
def test_quick_is_smaller(experiment, variant, scores):
    quick, full = (
        experiment.grid(case)
        for case in (
            case_of(experiment, variant, scores, draws=2, quick=True),
            case_of(experiment, variant, scores),
        )
    )
    assert len(quick) <= len(full)
    assert work(quick) * 4 <= work(full)
    assert {point.line for point in quick} == {point.line for point in full}


@pytest.mark.parametrize(("variant", "scores"), CASES)
def test_references_are_in_each(experiment, variant, scores):
    for quick in (False, True):
        points = experiment.grid(case_of(experiment, variant, scores, quick=quick))
        methods = {point.line: point.cell.method.name for point in points}
        assert methods["CP"] == ("cp" if variant == "as-written" else "cp-released")
        assert methods["FCP"] == (
            "fcp-released" if (experiment.name, variant) == ("star-table", VARIANTS[1]) else "fcp"
        )
        assert methods["E-DCP"] == "e-dcp"


@pytest.mark.parametrize(("variant", "scores"), CASES)
def test_every_method_takes_its_options(experiment, variant, scores):
    for point in experiment.grid(case_of(experiment, variant, scores)):
        method, options = point.cell.method.name, dict(point.cell.method.options)
        if method in METHODS:
            requirement, options = split_requirement(options)
            requirement_of(method, requirement)
            make_options(method, options)
            continue
        inspect.signature(PAPER_METHODS[method].run).bind("site", "samples", "given", **options)


def test_published_points_stand_where_points_do(experiment):
    points = experiment.grid(case_of(experiment, "as-released", "logits"))
    places = {(p.line, round(1 - a, 2) if p.x is None else p.x) for p in points for a in p.cell.alphas}
    assert {(theirs.line, theirs.x) for theirs in published_points(experiment.name)} <= places


@pytest.mark.parametrize(("name", "first"), [("figure-6", 100), ("figure-7", 1)])
def test_convergence_covers_the_published_range_on_a_logarithmic_axis(name, first):
    """No step is more than double, so that the curve between two points is seen."""
    experiment = get_experiment(name)
    assert experiment.axis.log
    points = experiment.grid(case_of(experiment, "as-released", "logits"))
    rounds = [dict(point.cell.method.options)["rounds"] for point in points if point.line == "chain"]
    assert (rounds[0], rounds[-1]) == (first, 10_000)
    assert all(1 < later / earlier <= 2 for earlier, later in pairwise(rounds))
    quick = [
        p.x for p in experiment.grid(case_of(experiment, "as-released", "logits", quick=True)) if p.line == "chain"
    ]
    assert quick == sorted({*quick})
    assert max(quick) <= 1000


# --- conventions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variant", "scores", "method", "expected"),
    [
        ("as-written", "logits", "q-dcp", ("q-dcp", {"start": "zeros", "bound": "paper", "rounds": 9})),
        ("as-released", "logits", "q-dcp", ("q-dcp-released", {"rounds": 9})),
        ("as-written", "logits", "h-dcp", ("h-dcp-printed", {"over": "scores", "rounds": 9})),
        ("as-written", "confidences", "h-dcp", ("h-dcp-printed", {"over": "unit", "rounds": 9})),
        ("as-released", "confidences", "h-dcp", ("h-dcp-printed", {"rounds": 9})),
        ("as-released", "logits", "cp", ("cp-released", {"rounds": 9})),
        ("as-released", "logits", "fcp", ("fcp-released", {"rounds": 9})),
        ("as-released", "logits", "fedcp-qq", ("fedcp-qq-published", {"rounds": 9})),
        ("as-written", "logits", "fedcp-qq", ("fedcp-qq", {"rounds": 9})),
        ("as-released", "logits", "e-dcp", ("e-dcp", {"rounds": 9})),
    ],
)
def test_methods_in_the_conventions_of_text_and_code(variant, scores, method, expected):
    given = {"rounds": 9}
    assert paper_method(variant, scores, method, given) == expected
    assert given == {"rounds": 9}


def test_what_an_experiment_says_goes_before_the_convention():
    assert paper_method("as-written", "logits", "q-dcp", {"bound": "sound"})[1]["bound"] == "sound"


def test_quick_looks_keep_the_ends():
    case = Case("x", "as-written", "logits", OutputSource("cifar100"), quick=True)
    assert case.thinned(LEVELS) == (0.1, 0.5, 0.9)
    assert case.thinned((1, 2), keep=3) == (1, 2)
    assert case.thinned(range(10), keep=4) == (0, 3, 6, 9)
    assert (case.rounds(3000), case.rounds(8000), case.rounds(1500)) == (300, 800, 1500)
    full = Case("x", "as-written", "logits", OutputSource("cifar100"))
    assert full.thinned(LEVELS) == LEVELS
    assert full.rounds(3000) == 3000


# --- names ------------------------------------------------------------------------------------------------------------


def test_items_are_other_names(experiment):
    number = experiment.item.split()[1]
    assert get_experiment(experiment.item) is experiment
    assert get_experiment(f"{experiment.item.split()[0].lower()}-{number}") is experiment
    assert get_experiment(experiment.name.upper()) is experiment


def test_names_and_items_are_all_there_once():
    every = [get_experiment(name) for name in EXPERIMENTS]
    assert [each.name for each in every] == [*EXPERIMENTS]
    assert {each.item for each in every} == {f"Figure {i}" for i in range(2, 18)} | {"Table 1"}
    assert len({each.title for each in every}) == len(every) == 17
    assert get_experiment("figure-2").name == "q-dcp-alpha"
    assert get_experiment("table-1").name == "star-table"


@pytest.mark.parametrize(
    ("name", "nearest"), [("q-dpc-alpha", "q-dcp-alpha"), ("figur-16", "figure-16"), ("table1", "table-1")]
)
def test_unknown_names_suggest_the_nearest(name, nearest):
    with pytest.raises(ValueError, match=f"unknown experiment '{name}', did you mean '{nearest}'"):
        get_experiment(name)


def test_requests_have_the_cases_tried_here():
    cases = ReproductionRequest().cases(get_experiment("star-table"), paper_score_sources([]))
    assert {(case.variant, case.scores) for case in cases} == {*CASES}
