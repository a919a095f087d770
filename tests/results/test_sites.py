"""Which sites are under-covered: forms of data, exact figures by device, flags, and what is refused."""

import json

import numpy as np
import polars as pl
import pytest
from msgspec.structs import replace
from scipy.stats import binom, binomtest

from conformesh import METHODS, Network, adapt, calibrate, control, losses, scores
from conformesh.results.sites import Sites

NAMES = ("ant", "bee", "cat", "doe")
LAC = scores.LAC()


def clinic(rng, rows, labels=(0, 1, 2, 3), shift=0):
    """Outputs that know the label, and labels; with a shift the model names another class."""
    truth = rng.choice(labels, rows)
    outputs = rng.dirichlet(np.ones(4), rows)
    outputs[np.arange(rows), (truth + shift) % 4] += 0.6
    return outputs / outputs.sum(axis=1, keepdims=True), truth


def plain(data):
    return calibrate({name: LAC(*pair) for name, pair in data.items()}, alpha=0.2, score=LAC, classes=NAMES)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(1)
    return {f"s{k}": clinic(rng, 60) for k in range(8)}


@pytest.fixture(scope="module")
def tested():
    """Site s3 has another meaning of its labels; s7 has no rows."""
    rng = np.random.default_rng(2)
    return {f"s{k}": clinic(rng, 90, shift=int(k == 3)) for k in range(7)}


def flat(tested):
    outputs = np.concatenate([pair[0] for pair in tested.values()])
    labels = np.concatenate([pair[1] for pair in tested.values()])
    return outputs, labels, np.repeat([*tested], [len(pair[1]) for pair in tested.values()])


def as_frame(tested):
    outputs, labels, device = flat(tested)
    columns = {name: outputs[:, c] for c, name in enumerate(NAMES)}
    return pl.DataFrame({"hospital": device, **columns, "label": np.array(NAMES)[labels]})


def test_figures_of_a_device_are_those_of_its_rows(data, tested):
    result = plain(data)
    unequal = {name: (p[: 90 - 9 * k], y[: 90 - 9 * k]) for k, (name, (p, y)) in enumerate(tested.items())}
    sites = result.sites(unequal)
    assert sites.devices == tuple(f"s{k}" for k in range(8))
    for name, (outputs, labels) in unequal.items():
        sets = result.predict(outputs, device=name)
        hits, sizes = sets[np.arange(len(labels)), labels], sets.sum(axis=1)
        one, ends = sites[name], binomtest(int(hits.sum()), len(hits)).proportion_ci(0.95, "exact")
        assert (one.rows, one.covered) == (len(hits), hits.sum())
        assert (one.low, one.high) == pytest.approx((ends.low, ends.high), abs=1e-12)
        assert (one.mean_size, one.empty) == pytest.approx((sizes.mean(), (sizes == 0).mean()), abs=1e-12)
        assert {c: (part.covered, part.rows) for c, part in one.per_class.items()} == {
            c: (hits[labels == c].sum(), (labels == c).sum()) for c in np.unique(labels)
        }
        assert sites.p_values[name] == pytest.approx(binom.cdf(hits.sum(), len(hits), 0.8), rel=1e-9)


def test_a_bad_site_is_flagged(data, tested):
    """False alarms: at most .05, by the tests of proportions. Power: coverage of .5 is found in .9997 of 90 rows."""
    sites = plain(data).sites(tested)
    assert sites.flagged == ("s3",)
    assert binom.cdf(binom.ppf(0.05 / 7, 90, 0.8) - 1, 90, 0.5) > 0.9997
    lowered = plain(data).sites(tested, nominal=0.02)  # what s3 reaches by chance
    assert lowered.flagged == ()
    assert lowered.nominal == 0.02


def test_all_forms_of_data_agree(data, tested):
    result = plain(data)
    expected, (outputs, labels, device) = result.sites(tested).to_dict(), flat(tested)
    frame, roles = as_frame(tested), {"device": "hospital"}
    shuffled = frame.sample(fraction=1.0, shuffle=True, seed=1).select(
        ["label", "cat", "hospital", "ant", "doe", "bee"]
    )
    forms = [
        result.sites(outputs, labels, device=device),
        result.sites(outputs, np.array(NAMES)[labels], device=device.tolist()),
        result.sites(frame, columns=roles),
        result.sites(shuffled, columns=roles),
        result.sites(frame.rename({"hospital": "device", "label": "y"}), "y"),
        result.sites(frame.to_pandas(), columns=roles) if hasattr(frame, "to_pandas") and _has_pandas() else None,
        result.sites([*tested.values(), (np.zeros((0, 4)), np.zeros(0, int))]),
        result.evaluate(outputs, labels, device=device).sites(),
    ]
    for form in forms:
        if form is not None:
            known = form.to_dict()
            assert {name: known["per_device"][name] for name in tested} == {
                name: expected["per_device"][name] for name in tested
            }
            assert form.flagged == ("s3",)


def _has_pandas():
    try:
        import pandas  # noqa: F401 - optional
        import pyarrow  # noqa: F401 - Polars converts by it
    except ImportError:
        return False
    return True


def test_a_frame_names_the_classes_where_the_result_does_not(data, tested):
    nameless = replace(plain(data), classes=None)
    sites = nameless.sites(as_frame(tested), columns={"device": "hospital"})
    assert sites.flagged == ("s3",)
    assert sites.lowest_class("s3")[0] in NAMES


def test_tables_text_and_pictures(data, tested, tmp_path):
    sites = plain(data).sites(tested)
    frame = sites.to_frame()
    assert frame["device"].to_list() == [*sites.devices]
    assert frame["flagged"].to_list() == [name == "s3" for name in sites]
    assert frame.filter(pl.col("device") == "s7")["rows"].item() == 0
    by_class = sites.to_frame(by_class=True)
    assert by_class["rows"].sum() == 7 * 90
    assert {*by_class["class"]} == {*NAMES}
    lines = repr(sites).splitlines()
    assert lines[0].startswith("Sites: 1 of 8 devices cover less than 0.8 (")
    assert lines[2].split()[0] == "s3"
    assert lines[2].endswith("below")
    assert lines[-1].split() == ["s7", "0"]
    assert "Sites" in sites._repr_html_()
    assert json.loads(json.dumps(sites.report()))["per_device"]["s3"]["per_class"].keys() == {*NAMES}
    for name in ("sites.json", "sites.csv", "sites.svg"):
        sites.plot(path=tmp_path / name) if name.endswith("svg") else sites.save(tmp_path / name)
    again = Sites.load(tmp_path / "sites.json")
    assert again.to_dict() == sites.to_dict()
    raw = {**sites.to_dict(), "flagged": []}
    with pytest.raises(ValueError, match="flagged must follow from the rest"):
        Sites.from_dict(raw)
    right = raw["per_device"]["s3"]
    one = {**right, "covered": 91}
    for device, words in (
        (one, "device s3 must have at most as many covered rows as rows"),
        ({**one, "covered": 89}, "device s3 must have the exact interval of 89 of 90 rows"),
        ({**right, "per_class": dict([*right["per_class"].items()][1:])}, "classes of device s3 must have all 90 rows"),
        ({**right, "low": 0.9}, "device s3 must have the exact interval of"),
        ({**right, "empty": 1.5}, "a share of empty sets between 0 and 1"),
    ):
        with pytest.raises(ValueError, match=words):
            Sites.from_dict({**raw, "per_device": {**raw["per_device"], "s3": device}})
    with pytest.raises(ValueError, match="source must be 'labelled rows' or 'calibration rows', got 'rows'"):
        Sites.from_dict({**raw, "source": "rows"})
    with pytest.raises(KeyError, match="unknown device 's33', did you mean"):
        sites["s33"]


def test_one_device_and_a_class_that_is_not_there():
    rng = np.random.default_rng(5)
    result = calibrate([LAC(*clinic(rng, 80, (0, 1)))], Network.chain(1), 0.2, score=LAC)
    outputs, labels = clinic(rng, 50, (0, 2))
    sites = result.sites(outputs, labels)
    assert sites.devices == result.device_ids
    assert {*sites[result.device_ids[0]].per_class} == {0, 2}


def test_intervals_have_widths():
    rng = np.random.default_rng(6)
    made = {f"s{k}": (rng.normal(size=60), rng.normal(size=60)) for k in range(4)}
    kind = scores.AbsoluteResidual()
    result = calibrate({name: kind(*pair) for name, pair in made.items()}, alpha=0.2, score=kind)
    sites = result.sites({"s0": made["s0"], "s1": (made["s1"][0], made["s1"][1] + 9)})
    assert sites.flagged == ("s1",)
    assert sites["s0"].mean_size == pytest.approx(2 * result.threshold)
    assert sites["s0"].per_class == {}
    frame = pl.DataFrame({"device": "s0", "prediction": made["s0"][0], "label": made["s0"][1]})
    assert result.sites(frame)["s0"].report() == sites["s0"].report()
    endless = replace(result, answers=tuple(replace(a, thresholds=np.full(4, np.inf)) for a in result.answers))
    wide = endless.sites({"s0": made["s0"]})
    assert wide["s0"].mean_size == np.inf
    assert Sites.from_dict(json.loads(wide.to_json())).to_dict() == wide.to_dict()


def test_a_frame_has_the_columns_that_the_score_reads():
    rng = np.random.default_rng(7)
    cqr, truth, device = scores.CQR(), rng.normal(size=200), np.arange(200) % 4
    band = np.column_stack([rng.normal(-1, 0.1, 200), rng.normal(1, 0.1, 200)])
    own = [cqr.sides(band[device == k], truth[device == k]) for k in range(4)]
    result = calibrate(own, "cycle", alpha=0.2, symmetric=False, score=cqr)
    frame = pl.DataFrame({"device": device, "lower": band[:, 0], "upper": band[:, 1], "label": truth})
    expected = result.sites(band, truth, device=device)
    assert result.sites(frame).to_dict() == expected.to_dict()
    assert sum(expected[k].covered for k in range(4)) == result.evaluate(band, truth).coverage.covered
    with pytest.raises(ValueError, match="a frame of scores must have the columns 'device', 'label', 'lower' and"):
        result.sites(frame.drop("lower"))


# --- adapted scores ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def adapted(data):
    prior = adapt.Prior(strength=10, temperature=1)
    return calibrate({**data, "none": (np.zeros((0, 4)), [])}, alpha=0.2, adapt=prior, classes=NAMES, rng=3)


def test_adapted_results(adapted, tested):
    sites = adapted.sites(tested)
    assert sites.flagged == ("s3",)
    for name, pair in tested.items():
        assert sites[name].report() == adapted.on(name).evaluate(*pair).per_device[name].report()
    with pytest.raises(ValueError, match=r"holds no calibration rows \(a file has none\): give labelled rows"):
        replace(adapted, rows={}).sites()


def test_calibration_rows_are_labelled_as_such(adapted, data):
    """Leave-one-out coverage of all rows together is the counted rank over their number."""
    sites = adapted.sites()
    assert sites.source == "calibration rows"
    assert sites.flagged == ()
    assert sites.p_values == {}
    covered = sum(sites[name].covered for name in sites)
    assert covered == adapted.certificate.counted_rank
    assert sites["none"].rows == 0
    assert sum(sites[name].rows for name in sites) == 480
    one, place = data["s2"], adapted.adapted.shared[0]
    own = adapted.guarantee.adapt.leave_one_out(adapt.Bag(*one), adapted.adapted.choices[place])
    assert sites["s2"].covered == (own <= adapted.threshold).sum()
    assert "calibration rows" in repr(sites)
    assert "mean_size" not in sites.columns()


def test_calibration_rows_of_groups(data):
    """Each row by the threshold of its own group."""
    groups = {name: np.where(np.arange(60) % 2, "odd", "even") for name in data}
    result = calibrate(data, alpha=0.2, adapt="prior", groups=groups, rng=3)
    sites = result.sites()
    covered = sum(sites[name].covered for name in sites)
    assert covered == sum(result[name].certificate.counted_rank for name in ("odd", "even"))


def test_rows_keep_their_order_beside_what_is_given_by_row(data, tested):
    """Groups of each row of a shuffled frame, and by device beside pairs, are those of the column."""
    sexes = {name: np.where(np.arange(60) % 2, "odd", "even") for name in data}
    result = calibrate(data, alpha=0.2, adapt="prior", groups=sexes, rng=3)
    beside = {name: np.where(np.arange(len(pair[1])) % 3, "odd", "even") for name, pair in tested.items()}
    frame = as_frame(tested).with_columns(sex=np.concatenate([*beside.values()]))
    frame = frame.rename(dict(zip(NAMES, "0123", strict=True))).rename({"hospital": "device"})
    frame = frame.with_columns(pl.col("label").replace(dict(zip(NAMES, "0123", strict=True))).cast(int))
    mixed = frame.sample(fraction=1.0, shuffle=True, seed=5)
    expected = result.sites(tested, groups=beside).to_dict()
    for found in (
        result.sites(mixed, groups="sex"),
        result.sites(mixed.drop("sex"), groups=mixed["sex"].to_list()),
        result.sites(mixed.select([*"0123"]), mixed["label"], device=mixed["device"], groups=mixed["sex"].to_list()),
    ):
        assert found.to_dict()["per_device"] == {**expected["per_device"]}
    with pytest.raises(TypeError, match="groups must be a dict of device -> groups of its rows"):
        result.sites(tested, groups=["odd"] * 630)
    with pytest.raises(ValueError, match="device s0 has 90 labels but groups of 1 rows"):
        result.sites(tested, groups={name: ["odd"] for name in tested})


def test_adapted_regression():
    rng = np.random.default_rng(8)
    made = {f"s{k}": (np.zeros(50), rng.normal(k, 1 + k, 50)) for k in range(3)}
    result = calibrate(made, alpha=0.2, adapt="scale", rng=1)
    frame = pl.concat([pl.DataFrame({"device": n, "prediction": x, "label": y}) for n, (x, y) in made.items()])
    assert result.sites(frame).to_dict() == result.sites(made).to_dict()
    assert result.sites(made)["s2"].mean_size > result.sites(made)["s0"].mean_size


# --- what is refused --------------------------------------------------------------------------------------------------


def test_private_methods_are_those_with_epsilon():
    """By which a result knows that it is private: it does not know the table of methods."""
    assert {name for name, method in METHODS.items() if method.private} == {
        name for name, method in METHODS.items() if "epsilon" in method.option_names()
    }


def test_what_sites_needs_is_said(data, tested, adapted):
    result, (outputs, labels, device) = plain(data), flat(tested)
    wrong = [
        (result.sites, ValueError, r"holds no calibration rows \(scores are not kept\): give labelled rows"),
        (lambda: result.sites(outputs, labels), ValueError, "needs the device of each row: device="),
        (lambda: result.sites(outputs, device=device), ValueError, "needs the true label of each row"),
        (lambda: result.sites({"s0": tested["s0"], "mars": tested["s1"]}), ValueError, "unknown device 'mars'"),
        (lambda: result.sites({"s0": tested["s0"][0]}), ValueError, "device s0 must have a pair"),
        (lambda: result.sites({"s0": (outputs, labels[:3])}), ValueError, "630 rows of outputs but 3 labels"),
        (lambda: result.sites([tested["s0"]]), ValueError, "a pair .* for each of 8 devices, got 1"),
        (lambda: result.sites({}), ValueError, "no device has labelled rows"),
        (lambda: result.sites(tested, family_wise_error=0), ValueError, "family_wise_error must lie strictly between"),
        (lambda: result.evaluate(outputs, labels).sites(), ValueError, "does not know which device its rows are from"),
        (lambda: adapted.sites({"mars": tested["s0"]}), ValueError, "device 'mars' took no part"),
    ]
    for call, error, words in wrong:
        with pytest.raises(error, match=words):
            call()
    private = calibrate(data, alpha=0.2, adapt="prior", method="p-dcp", rng=1)
    with pytest.raises(ValueError, match="a private run shows nothing of single devices' calibration rows"):
        private.sites()
    own = calibrate(data, alpha=0.2, adapt="prior", mixture="own")
    with pytest.raises(ValueError, match="reach 1 - alpha by construction"):
        own.sites()


def test_losses_are_not_coverage():
    rng, fnr = np.random.default_rng(0), losses.FalseNegativeRate()
    rows = [(p := rng.random((40, 6)), rng.random((40, 6)) < p) for _ in range(4)]
    result = control([fnr(p, y) for p, y in rows], "cycle", risk=0.2, loss=fnr)
    with pytest.raises(ValueError, match=r"sites\(\) tests coverage; with a loss use evaluate"):
        result.sites(*rows[0])


def test_tables_of_the_same_sites_are_drawn_beside_each_other(tmp_path):
    from matplotlib.image import imread

    from conformesh.plots.results import compare_sites

    def drawn(seed, names=("a", "b", "c")):
        rng = np.random.default_rng(seed)
        outputs, labels = rng.dirichlet(np.ones(3), 90), rng.integers(0, 3, 90)
        result = calibrate({name: rng.random(20) for name in names}, alpha=0.2, score=LAC)
        return result.sites(outputs, labels, device=np.repeat(names, 30))

    first = drawn(0)
    compare_sites({"one": first, "other": drawn(1)}, path=tmp_path / "sites.png")
    assert imread(tmp_path / "sites.png")[:, :, :3].std() > 0.03
    with pytest.raises(ValueError, match="the table 'other' has other devices than 'one'"):
        compare_sites({"one": first, "other": drawn(1, ("a", "b", "d"))})
