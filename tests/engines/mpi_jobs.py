"""What the ranks of an MPI job do in the tests: ``mpiexec -n 3 python -m tests.engines.mpi_jobs NAME ...``.

Every job ends with one JSON object on the standard output of rank 0.
"""

import json
import sys
import time
import warnings
from functools import partial

import numpy as np
from mpi4py import MPI

from conformesh import Network, TooFewScores, calibrate, control, detect, p_values
from conformesh.cli.hosts import _Ranks, table_of_devices
from conformesh.engines import Mpi, Simulator
from conformesh.engines.mpi.exchange import DifferentQuestions
from conformesh.engines.mpi.partition import PARTITIONS
from conformesh.files.tables import FileLayout
from conformesh.kernels.ranks import GROUP_RULES
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.pipeline.solver import solve_draws
from conformesh.protocols import waves
from conformesh.protocols.masks import Secrets
from conformesh.protocols.messages import MESSAGE_KINDS, Each, Extreme, Max, Min, Packets, Pool, Sum, Tell
from tests.engines.mpi_cases import (
    ALPHAS,
    CASES,
    EVERYWHERE,
    NETWORKS,
    adapted_cases,
    losses_of,
    name_of,
    record,
    scores_of,
)
from tests.engines.strictness import BAD, MORE, NETWORK, POOLS, STRANGE, childless_tree, rows_said, saying
from tests.protocols.alone import repeatable_secrets

COMM = MPI.COMM_WORLD
Secrets.simulated = staticmethod(repeatable_secrets)  # bits of masked numbers are compared, which fresh secrets change


def different(ours, right):
    """Name what differs between two batches, to the last bit."""
    a, b = ours.outcome, right.outcome
    equal = {
        "thresholds": np.array_equal(a.thresholds, b.thresholds),
        "certificates": a.certificates == b.certificates,
        "estimates": (a.estimates is None) == (b.estimates is None)
        and (a.estimates is None or np.array_equal(a.estimates, b.estimates)),
        "brackets": (a.brackets is None) == (b.brackets is None)
        and (a.brackets is None or np.array_equal(a.brackets, b.brackets)),
        "notes": a.notes == b.notes,
        "facts": a.facts == b.facts,
        "rounds": ours.cost.rounds == right.cost.rounds,
        "numbers": np.array_equal(ours.cost.numbers, right.cost.numbers),
        "bits": np.array_equal(ours.cost.bits, right.cost.bits),
        "sizes": np.array_equal(ours.sizes, right.sizes),
        "options": ours.options == right.options,
    }
    return [name for name, same in equal.items() if not same]


def equal_bits(network):
    """Every method with every aggregator on a network: two trials, two levels."""
    found = {}
    engine = Mpi(network)
    trials = scores_of(network, 2)
    mine = WeightedScores.of_trials([[trial[row] for row in engine.rows] for trial in trials])
    for method, options in CASES:
        ours = solve_draws(mine, network, (0.3, 0.5), method, engine=engine, **options)
        if COMM.rank == 0:
            right = solve_draws(WeightedScores.of_trials(trials), network, (0.3, 0.5), method, **options)
        found[name_of("", method, options)] = different(ours, right if COMM.rank == 0 else ours)
    engine.close()
    return found


def all_records():
    """Every method with every aggregator: what each case finds and costs, for whoever else ran it."""
    found = {}
    for network in EVERYWHERE:
        engine, (scores,) = Mpi(network), scores_of(network)
        mine = WeightedScores.of([scores[row] for row in engine.rows])
        for method, options in CASES:
            batch = solve_draws(mine, network, ALPHAS, method, joint=True, engine=engine, **options)
            found[name_of(network.name, method, options)] = record(batch.outcome, batch.cost)
        engine.close()
    return found


def equal_messages():
    """Every question in every type that travels, with weights and with several axes, on every partition."""
    network = Network.of("geometric", 40, seed=3)
    asked = [*messages(network, np.random.default_rng(0))]
    answers = [Simulator(network).run(once(message)) for _, message in asked]
    bad = []
    for by in PARTITIONS:
        engine = Mpi(network, partition=by)
        for (name, message), (right, paid) in zip(asked, answers, strict=True):
            ours, cost = engine.run(once(block_of(message, engine)))
            if not same_answer(ours, right, engine) or not same_cost(cost, paid):
                bad.append(f"{by}-{name}")
        engine.close()
    return {"asked": len(asked), "bad": sorted({name for names in COMM.allgather(bad) for name in names})}


def once(message):
    """Ask one question."""
    return (yield message)


def messages(network, rng):
    """Name all kinds of messages from all devices."""
    weights = rng.random(len(network.indices))
    for dtype in (np.float64, np.float32, np.float16, np.int64, np.int16, np.bool_):
        for shape in ((), (3,), (2, 1, 5), (0,)):
            x = (rng.normal(size=(network.devices, *shape)) * 3).astype(dtype)
            name = f"{np.dtype(dtype).name}-{shape}"
            if dtype is not np.bool_:
                yield f"sum-{name}", Sum(x)
                yield f"weighted-{name}", Sum(x, weights)
            yield f"max-{name}", Max(x)
            yield f"min-{name}", Min(x)
            for share in (0.0, 0.3, 1.0):
                yield f"each-{name}-{share}", Each(x, rng.random(network.devices) < share)
                yield f"max-{name}-{share}", Max(x, speakers=rng.random(network.devices) < share)
                yield f"min-{name}-{share}", Min(x, speakers=np.flatnonzero(rng.random(network.devices) < share))
    strange = rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0], (network.devices, 2, 3))
    for name, x in {"strange": strange, "fortran": np.asfortranarray(strange), "strided": strange[:, ::-1]}.items():
        for kind in (Sum, Max, Min):
            yield f"{kind.__name__}-{name}", kind(x)
        yield f"each-{name}", Each(x, rng.random(network.devices) < 0.5)
        for kind in (Max, Min):
            yield f"{kind.__name__}-{name}-some", kind(x, speakers=rng.random(network.devices) < 0.5)
    for share in (0.0, 0.3, 1.0):
        for longest in (0, 1, 3, 1000):
            speakers = np.flatnonzero(rng.random(network.devices) < share)
            strings = [rng.bytes(rng.integers(longest, endpoint=True)) for _ in speakers]
            yield f"tell-{share}-{longest}", Tell(Packets.of(strings), speakers, rng.integers(0, 9, len(speakers)))
    sizes = rng.integers(0, 5, 2 * network.devices)
    yield "pool", Pool(rng.normal(size=sizes.sum()), np.concatenate([[0], np.cumsum(sizes)]))


def block_of(message, engine):
    """Return the part of a message that the devices of this rank say."""
    here = engine.rows
    if isinstance(message, Pool):
        sizes = np.diff(message.offsets).reshape(-1, 2)[here].ravel()
        pieces = np.split(message.values, message.offsets[1:-1])
        mine = np.concatenate([np.concatenate(pieces[2 * k : 2 * k + 2]) for k in here])
        return Pool(mine, np.concatenate([[0], np.cumsum(sizes)]))
    if isinstance(message, Each):
        return Each(message.values[here], message.mask[here])
    if isinstance(message, Tell):
        mine = np.flatnonzero(np.isin(message.speakers, here))
        places = np.searchsorted(here, message.speakers[mine])
        return Tell(Packets.of([message.packets[i] for i in mine]), places, message.numbers[mine])
    if isinstance(message, Sum) and message.weights is not None:
        return Sum(message.values[here], message.weights[np.isin(engine.network.receivers, here)])
    if isinstance(message, Max | Min) and message.speakers is not None:
        return type(message)(message.values[here], speakers=message.mask[here])
    return type(message)(message.values[here])


def same_answer(ours, right, engine):
    """Compare bytes and types."""
    if isinstance(right, Pool):
        return ours.values.tobytes() == right.values.tobytes() and np.array_equal(ours.offsets, right.offsets)
    if isinstance(right, np.ndarray):
        expected = right[engine.rows]
        return ours.dtype == right.dtype and ours.shape == expected.shape and in_bytes(ours) == in_bytes(expected)
    if isinstance(right, Extreme):
        changed = np.flatnonzero(np.isin(engine.rows, right.changed))
        return np.array_equal(ours.changed, changed) and same_answer(ours.values, right.values, engine)
    mine = np.isin(right.receiver, engine.rows)
    if not (np.array_equal(ours.receiver, right.receiver[mine]) and np.array_equal(ours.sender, right.sender[mine])):
        return False
    if hasattr(right, "packets"):
        expected = right.packets.take(np.flatnonzero(mine))
        return all(
            one.dtype == other.dtype and np.array_equal(one, other)
            for one, other in (
                (ours.packets.values, expected.values),
                (ours.packets.offsets, expected.offsets),
            )
        )
    return (
        ours.values.dtype == right.values.dtype
        and ours.values.shape == right.values[mine].shape
        and ours.values.tobytes() == right.values[mine].tobytes()
    )


def same_cost(ours, right):
    """Compare what every device paid."""
    return ours.rounds == right.rounds and all(
        np.array_equal(one, other) for one, other in ((ours.numbers, right.numbers), (ours.bits, right.bits))
    )


def in_bytes(values):
    """Return the bits of an array; which NaN comes of adding up several is nobody's promise."""
    values = values.copy()
    if values.dtype.kind == "f":
        values[np.isnan(values)] = np.nan
    return values.tobytes()


def strict():
    """Say and ask what no device could: every rank meets the same error, or one of them does and all hear of it."""
    engine = Mpi(NETWORK, owners=np.array([0, 0, 0, 1, 1, 1]))
    refused = {name: refusal(engine, once(make(engine.rows))) for name, (make, *_) in {**BAD, **MORE, **POOLS}.items()}
    said = {question: {name: not_said(engine, question, name) for name in STRANGE} for question in ("each", "tell")}
    waves.explore_tree, sound = childless_tree(), waves.explore_tree
    scores = [[0.1 * k, 0.5] for k in range(6)]
    planted = []
    try:
        calibrate(scores, NETWORK, 0.3, engine=engine, aggregate="tree")
    except ValueError as error:
        planted.append(str(error))
    waves.explore_tree = sound
    return {
        "messages": refused,
        "said": said,
        "planted": [words for each in COMM.allgather(planted) for words in each],
        "kinds": sorted(MESSAGE_KINDS[kind].name for kind in engine._answers),
    }


def not_said(engine, question, name):
    """Ask what was not said; return what every rank hears of it."""
    speakers, receivers, senders, _ = STRANGE[name]
    heard, _ = engine.run(once(saying(question, engine.rows, speakers)))
    asked = np.isin(receivers, engine.rows)
    try:
        words = str(rows_said(heard, np.array(receivers)[asked], np.array(senders)[asked]))
    except ValueError as error:
        words = str(error)
    return COMM.allgather(words)


def refusal(engine, protocol):
    """Return the error that a protocol ends with."""
    try:
        engine.run(protocol)
    except (TypeError, ValueError) as error:
        return type(error).__name__, str(error)
    return "none", ""


def whole_results():
    """`calibrate` and `control` by name, from all scores or from this rank's; the result is everybody's."""
    network = NETWORKS["torus"]
    (scores,) = scores_of(network)
    groups = [np.arange(len(own)) % 3 for own in scores]
    warnings.simplefilter("ignore", TooFewScores)  # of one group
    right = calibrate(scores, network, 0.3).to_dict()
    several = calibrate(scores, network, (0.3, 0.5), groups=groups).to_dict()
    lost = losses_of(network)
    controlled = control(lost, network, 0.4, mixture="equal").to_dict()
    warm = {"mixture": "equal", "warm": (0.2, 0.6)}
    rounds = []
    engine = Mpi(network, observer=lambda round_, *_: rounds.append(round_))
    own, lost_here = ([each[row] for row in engine.rows] for each in (scores, lost))
    # Shares by device, and 0 for those with few scores: only some of the scores count.
    shares = {name: 1 + k % 2 if len(scores[k]) > 4 else 0 for k, name in enumerate(network.ids)}
    always = {"mixture": shares, "pac_confidence": 0.5, "time_uniform": True}
    looks = [calibrate(scores, network, 0.5, **always)]
    looks += [calibrate(each, network, 0.5, engine=on, **always) for each, on in ((scores, "mpi"), (own, engine))]
    rounds.clear()
    found = {
        "by name": without_time(calibrate(scores, network, 0.3, engine="mpi").to_dict()) == without_time(right),
        "own scores": without_time(calibrate(own, network, 0.3, engine=engine).to_dict()) == without_time(right),
        "observed": rounds == [*range(1, right["cost"]["rounds"] + 1)],
        "groups": without_time(calibrate(scores, network, (0.3, 0.5), groups=groups, engine="mpi").to_dict())
        == without_time(several),
        "losses": without_time(control(lost, network, 0.4, mixture="equal", engine="mpi").to_dict())
        == without_time(control(lost_here, network, 0.4, mixture="equal", engine=engine).to_dict())
        == without_time(controlled),
        "losses again": without_time(control(lost, network, 0.4, engine="mpi", **warm).to_dict())
        == without_time(control(lost, network, 0.4, **warm).to_dict()),
        "tests of lambdas": without_time(tested(lost, network, engine="mpi"))
        == without_time(tested(lost_here, network, engine=engine))
        == without_time(tested(lost, network)),
        **judged(network, scores, groups, engine),
        "at all looks": [without_time(one.to_dict()) for one in looks[1:]] == [without_time(looks[0].to_dict())] * 2,
        "overlapping groups": all(_overlapping_alike(scores, network, rule) for rule in GROUP_RULES),
        "unknown mixtures": all(
            without_time(calibrate(scores, network, (0.3, 0.5), groups=groups, engine="mpi", **asked).to_dict())
            == without_time(calibrate(scores, network, (0.3, 0.5), groups=groups, **asked).to_dict())
            for asked in ({"mixture": "own"}, {"mixture": "any"}, {"mixture": "equal", "mixture_bound": 1.5})
        ),
        "adapted": all(_adapted_alike(*case) for case in adapted_cases(network)),
    }
    everyone = COMM.allgather(found)
    return {name: all(each[name] for each in everyone) for name in found}


def tested(losses, network, **how):
    """Tests of a grid of lambdas, with one weight for each device."""
    asked = {"monotone": False, "pac_confidence": 0.5, "grid": [0.9, 0.5, 0.1], "mixture": "equal"}
    return control(losses, network, 0.4, **asked, **how).to_dict()


def judged(network, scores, labels, engine):
    """P-values and flags, from all scores or from this rank's."""
    here, tests = engine.rows, [np.array([-1.0, 0.4, 9.0])[: k % 4] for k in range(network.devices)]
    plain = p_values(scores, network, [0.1, 0.7, 0.7, 3.0], mixture="equal")
    asked = {"test_labels": [0, 1, 2, 3]}
    by_class = p_values(scores, network, [0.1, 0.7, 0.7, 3.0], labels=labels, **asked)
    flagged = detect(scores, network, tests, 0.5, rng=3)
    ours = [
        p_values(scores, network, [0.1, 0.7, 0.7, 3.0], mixture="equal", engine="mpi"),
        p_values(
            [scores[row] for row in here],
            network,
            [0.1, 0.7, 0.7, 3.0],
            labels=[labels[row] for row in here],
            engine=engine,
            **asked,
        ),
        detect(scores, network, tests, 0.5, engine="mpi", rng=3),
        detect([scores[row] for row in here], network, [tests[row] for row in here], 0.5, engine=engine, rng=3),
    ]
    fresh = detect(scores, network, tests, 0.5, engine="mpi")  # each rank draws a seed: they must agree on one
    ours.append(fresh)
    right = [plain, by_class, flagged, flagged, detect(scores, network, tests, 0.5, rng=fresh.seed)]
    names = ("p-values", "class-wise", "flags", "own flags", "fresh flags")
    agreed = len({*COMM.allgather(fresh.seed)}) == 1
    return {"one fresh seed": agreed} | {
        name: without_time(mine.to_dict()) == without_time(each.to_dict())
        for name, mine, each in zip(names, ours, right, strict=True)
    }


def _overlapping_alike(scores, network, rule):
    """Whether ranks find what the simulator does where groups overlap; each rank knows the groups of its own scores."""
    tables = [np.arange(len(own))[:, None] % [2, 3] == 0 for own in scores]
    alone, together = (
        calibrate(scores, network, (0.3, 0.5), groups=tables, group_rule=rule, engine=engine).to_dict()
        for engine in ("simulator", "mpi")
    )
    return without_time(alone) == without_time(together)


def _adapted_alike(data, network, new, given):
    """Whether ranks share the simulator's windows, settings, hidden rows and digests, and predict the same sets."""
    alone = calibrate(data, network, (0.1, 0.3), rng=3, **given)
    engine, groups = Mpi(network), given.get("groups")
    mine = [network.ids[row] for row in engine.rows]
    own = given if groups is None else {**given, "groups": {name: groups[name] for name in mine}}
    found = [
        calibrate(data, network, (0.1, 0.3), rng=3, engine=engine, **given),
        calibrate({name: data[name] for name in mine}, network, (0.1, 0.3), rng=3, engine=engine, **own),
    ]
    engine.close()
    found.append(calibrate(data, network, (0.1, 0.3), rng=3, engine="mpi", **given))
    right = without_time(alone.to_dict())
    asked = {"alpha": 0.1, "groups": None if groups is None else ["a", "b", "a", "b", "b"]}

    def predicted(one, name):
        # A rank holds the rows of its own devices only: those of others must be given, and match their digest.
        if name in one.rows:
            return one.on(name).predict(new, **asked)
        return one.on(name, data[name], groups=None if groups is None else groups[name]).predict(new, **asked)

    sets = [np.array_equal(predicted(one, name), predicted(alone, name)) for one in found for name in network.ids]
    return all(without_time(one.to_dict()) == right for one in found) and all(sets)


def many_engines():
    """Make more engines than MPI has room for at once: each gives back what it took."""
    network = NETWORKS["torus"]
    owners = np.arange(network.devices) % COMM.size
    for _ in range(3000):
        Mpi(network, owners=owners).close()
    return {"made": 3000}


def loading(folder):
    """Read scores from each kind of source; every rank gets those it hosts, and of a folder no others."""
    found = {}
    for source in ("scores.csv", "parts", "hive", "arrays"):
        held, engine = _Ranks(Mpi, COMM).load(f"{folder}/{source}", FileLayout(groups=("site",)), around)
        ids = tuple(engine.network.ids[row] for row in engine.rows)
        rows = table_of_devices(held, ids)
        mine = [sorted(rows.score[rows.rows(k)].tolist()) for k in range(rows.devices)]
        read = engine.network.ids if source == "scores.csv" else ids
        found[source] = {"scores": dict(zip(ids, mine, strict=True)), "reads": {*held.devices} == {*read}}
        found[source]["groups"] = len(rows.groups) == len(rows)
        engine.close()
    everyone = COMM.allgather(found)
    return {
        source: {
            "scores": {name: own for each in everyone for name, own in each[source]["scores"].items()},
            "only own": all(each[source]["reads"] for each in everyone),
            "groups": all(each[source]["groups"] for each in everyone),
        }
        for source in found
    }


def around(devices, where):
    """Put devices on a cycle."""
    return Network.cycle(len(devices)).relabelled(devices)


def everything(*parts):
    """Do in one job what one job can do: starting Python takes longer than most of it."""
    jobs = {
        "records": all_records,
        **{where: partial(equal_bits, network) for where, network in NETWORKS.items()},
        "messages": equal_messages,
        "results": whole_results,
        "strict": strict,
        "error": all_ranks_fail,
    }
    return {part: jobs[part]() for part in parts}


def without_time(result):
    """Drop what no two runs share."""
    if isinstance(result, dict):
        return {key: without_time(value) for key, value in result.items() if key != "seconds"}
    return [without_time(value) for value in result] if isinstance(result, list) else result


def one_rank_fails(where):
    """Fail on the last rank only: in its scores, in the midst of a protocol, or by asking something else."""
    network = NETWORKS["torus"]
    (scores,) = scores_of(network)
    last = COMM.rank == COMM.size - 1
    engine = Mpi(network)
    if where == "scores":
        own = [np.array([np.nan]) if last else scores[row] for row in engine.rows]
        calibrate(own, network, 0.3, engine=engine)
    elif where == "protocol":
        engine.run(_falters(engine, last))
    return {"survived": True}


def different_turns():
    """Let the last rank ask something else, or end before the others: all of two ranks see it."""
    found = {}
    for protocol in (_differs, _ends_early):
        engine = Mpi(NETWORKS["torus"])
        try:
            engine.run(protocol(engine, COMM.rank == COMM.size - 1))
        except DifferentQuestions as error:
            found[protocol.__name__] = str(error)
    return found


def _falters(engine, fails):
    for round_ in range(50):
        if fails and round_ == 20:
            raise RuntimeError("the disk is full")
        yield Sum(np.ones(len(engine.rows)))


def _differs(engine, differs):
    yield Sum(np.ones(len(engine.rows)))
    yield Max(np.ones(len(engine.rows))) if differs else Sum(np.ones(len(engine.rows)))


def _ends_early(engine, ends):
    for _ in range(1 if ends else 3):
        yield Sum(np.ones((len(engine.rows), 4)))


def all_ranks_fail():
    """Every rank meets the same error, which stays an ordinary one."""
    started = time.monotonic()
    try:
        calibrate([[0.1]] * 12, NETWORKS["torus"], 0.3, "e-dcp", engine="mpi", aggregate="flod")
    except ValueError as error:
        return {"error": str(error), "seconds": time.monotonic() - started}


def weighted():
    """Weighted scores on every network of random cases: what this rank's devices hold, and whole results."""
    from tests.pipeline.test_weights import random_case, shifted_calls

    rng, found = np.random.default_rng(4), []
    for _ in range(40):
        case = random_case(rng, 5, least=2)
        engine = Mpi(case.network)
        mine, items = case.samples.take(engine.rows), case.items[engine.rows]
        batch = solve_draws(
            mine, case.network, (case.alpha,), "e-dcp", requirement=case.requirement, items=items, engine=engine
        )
        ranks = [row[0].required_rank for row in batch.outcome.certificates]
        found.append({"thresholds": batch.outcome.thresholds.tolist(), "ranks": ranks})
        engine.close()
    return {"cases": found, "calls": shifted_calls("mpi")}


if __name__ == "__main__":
    job = {f.__name__: f for f in (everything, one_rank_fails, different_turns, many_engines, loading, weighted)}
    result = job[sys.argv[1]](*sys.argv[2:])
    if COMM.rank == 0:
        print(json.dumps(result))
