"""Replay recorded calls: from a call to the public interface, and from its result to plain data.

This is the only file of `tests/recorded` that knows the names of the library's functions, arguments and results.
``python -m tests.recorded.replay`` under mpiexec replays the calls over MPI and prints their answers.
"""

import hashlib
import json
import sys
import warnings
from fractions import Fraction
from unittest import mock

import numpy as np

import conformesh
from conformesh.kernels.ranks import exact_alpha, make_requirement
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.methods import async_protocol, device_protocol, make_options
from conformesh.peer.async_device import AsyncDevice
from conformesh.peer.device import Device
from conformesh.peer.interface import PeerSetup
from conformesh.peer.loopback import LinkFaults, run_loopback
from conformesh.peer.settings import Settings
from conformesh.pipeline.shift import LikelihoodRatios
from conformesh.pipeline.solver import solve_draws
from conformesh.protocols.block import Answers
from conformesh.protocols.masks import Secrets
from conformesh.results.certificate import Cost
from conformesh.scores.losses import FalseNegativeRate, StepLosses
from tests.protocols.alone import repeatable_secrets, secrets_of
from tests.recorded.drawing import draw, generator, handed_over

MANY = 64  # devices, above which values are recorded as a digest
LIMIT = 300.0  # virtual seconds after which devices over loopback count as hanging
ARGUMENTS = {  # of a call, and what the library calls them
    **{name: name for name in ("mixture", "rank_rule", "pac_confidence", "group_rule", "group_order", "method")},
    **{name: name for name in ("score", "strict", "faults", "rng", "rule", "p_values", "classes")},
    "draws": "sample_size",
}
CERTIFICATE = {  # fields that are recorded, by name of the field today
    "kind": "kind",
    "required_rank": "required",
    "counted_rank": "counted",
    "epsilon": "epsilon",
    "epsilon_T": "epsilon_convergence",
    "epsilon_bias": "epsilon_bias",
    "mixture": "mixture",
    "rule": "rule",
    "weight": "weight",
    "pac_confidence": "pac_confidence",
    "bound": "bound",
    "test": "test",
    "losses": "losses",
    "heard": "heard",
    "byzantine": "byzantine",
}


def replay(call):
    """Run a call and return its answer as plain data; a refusal is raised."""
    with warnings.catch_warnings(record=True) as caught, mock.patch.object(Secrets, "simulated", repeatable_secrets):
        warnings.simplefilter("always")
        table = draw(call)
        engine = call.get("engine", {}).get("name", "simulator")
        answer = over_loopback(call, table) if engine == "loopback" else described(call, called(call, table))
    too_few = any(issubclass(warning.category, conformesh.TooFewScores) for warning in caught)
    return {"data": table.digest(), "too_few": too_few, **answer}


# --- the call ---------------------------------------------------------------------------------------------------------


def called(call, table):
    """Call the public function; return its result."""
    name, form = call["kind"], call["data"]["form"]
    scores, column = handed_over(table, form)
    arguments = {theirs: call[ours] for ours, theirs in ARGUMENTS.items() if ours in call}
    arguments |= call.get("options", {})
    if "mixture" in call:
        arguments["mixture"] = mixture_of(call, table)
    if call.get("engine", {}).get("name") == "mpi":
        arguments["engine"] = "mpi"
    network = network_of(call)
    first = scores
    if form == "flat":
        sizes = [len(own) for own in table.scores]
        first = conformesh.Table.from_flat(np.concatenate([np.asarray(own, float) for own in table.scores]), sizes)
    if name == "draws":
        requirement = make_requirement(*(arguments.pop(key, default) for key, default in REQUIREMENT))
        more = [draw({**call, "data": {**call["data"], "seed": call["data"]["seed"] + 1000 * t}}).scores
                for t in range(1, call["number"])]  # fmt: skip
        samples = samples_of([table.scores, *more])
        return solve_draws(
            samples, network, call["alpha"], arguments.pop("method", "e-dcp"), requirement=requirement,
            joint=call.get("whole_cost", False), **arguments,
        )  # fmt: skip
    if call["kind"] == "control":
        first, more = losses_of(call, table)
        arguments |= more
    if "groups" in call:
        several = call["groups"].get("columns")
        arguments["groups"] = "group" if several is None else [*several]
        if form in ("list", "dict", "table"):
            arguments["groups"] = column("group") if several is None else rows_by_device(table, column, several, form)
    if "group_atoms" in call:
        arguments["group_atoms"] = {tuple(atom): number for atom, number in call["group_atoms"]}
    arguments |= shift_of(call, column)
    if "centres" in call:
        spec = {key: value for key, value in call["centres"].items() if key != "features"}
        arguments |= {"centres": conformesh.Centres.at(**spec), "inputs": column("input")}
    if "tests" in call:
        tests = table.tests
        if name == "detect" and form == "dict":
            tests = dict(zip(table.names, tests, strict=True))
        arguments["test_scores"] = tests
        if "labels" in call:
            arguments["labels"] = column("label")
            if "classes" not in call["tests"]:
                arguments["test_labels"] = table.columns["test label"][0]
    if "fdr" in call:
        arguments["fdr"] = call["fdr"]
    if "alpha" in call:
        level, alpha = {"quantiles": "q", "control": "risk"}.get(name, "alpha"), call["alpha"]
        if isinstance(alpha, dict):  # of the lower and the upper side
            lower, upper = exact_alpha(alpha["lower"]), exact_alpha(alpha["upper"])
            arguments["lower_share"], alpha = lower / (lower + upper), lower + upper
        arguments[level] = alpha
    if "sides" in call:
        arguments["symmetric"] = False
    return getattr(conformesh, name)(first, network, **arguments)


REQUIREMENT = (("mixture", "sizes"), ("rank_rule", "auto"), ("pac_confidence", None))


def network_of(call):
    """Return the network in the form that the call names."""
    spec = call["network"]
    more = {"seed": spec["seed"]} if "seed" in spec else {}
    if spec.get("given") == "name":
        return spec["topology"]
    built = conformesh.Network.of(spec["topology"], spec["devices"], **more)
    if "names" in spec:
        built = built.relabelled([f"{spec['names']}{k}" for k in range(spec["devices"])])
    return built.to_networkx() if spec.get("given") == "networkx" else built


def mixture_of(call, table):
    """Return a mixture by name, or the shares of the devices: whole, with a zero, or too fine for small integers."""
    kind = call["mixture"]
    if not kind.startswith("given"):
        return "share" if kind == "column" else kind
    shares = generator(call["data"]["seed"], "shares").integers(1, 7, len(table.names)).tolist()
    if kind == "given-zero":
        shares[0] = 0
    if kind == "given-fine":
        shares = [f"{share}.{10**9 + 7 * k}" for k, share in enumerate(shares)]
    return dict(zip(table.names, shares, strict=True))


def samples_of(draws):
    """Return scores of several draws, by device and draw, from one flat array."""
    pieces = [np.asarray(own[k], dtype=float) for k in range(len(draws[0])) for own in draws]
    sizes = np.array([len(piece) for piece in pieces])
    return WeightedScores.from_flat(np.concatenate(pieces), sizes, len(draws))


def rows_by_device(table, column, names, form):
    """Return several columns of groups by device: a dict of columns for each."""
    each = [{name: table.columns[name][k] for name in names} for k in range(len(table.names))]
    return dict(zip(table.names, each, strict=True)) if form == "dict" else each


def shift_of(call, column):
    """Return the arguments for weights of scores."""
    spec = call.get("weights")
    if spec is None:
        return {}
    if "classes" in spec:
        return {"class_weights": spec["classes"], "labels": column("label")}
    more = {"test_weights": spec["tests"]} if "tests" in spec else {}
    if "function" in spec:
        ramp = lambda x: spec["bound"] * (x if np.ndim(x) == 1 else np.asarray(x)[:, 0])  # noqa: E731
        return {"weight": ramp, "weight_bound": spec["bound"], "inputs": column("input"), **more}
    weight = column("weight")
    if spec.get("estimated"):
        return {"weight": LikelihoodRatios(lambda x: x, weight, spec["bound"], 0.0), **more}
    return {"weight": weight, "weight_bound": spec.get("declared", spec["bound"]), **more}


def losses_of(call, table):
    """Return losses in the form that the call names, and further arguments."""
    spec = call["losses"]
    bound = {} if "bound" not in spec else {"bound": spec["bound"]}
    if spec["form"] == "frame":
        rows = [
            {"device": name, "item": item, "lambda": point, "loss": loss}
            for name, own in zip(table.names, table.outputs, strict=True)
            for item, values in enumerate(own.tolist())
            for point, loss in zip(spec["lambdas"], values, strict=True)
        ]
        import pandas as pd

        return pd.DataFrame(rows), bound
    if spec["form"] == "items":
        return [[(spec["lambdas"], row) for row in own] for own in table.outputs], bound
    if spec["form"] == "grid":
        return [StepLosses.on_grid(spec["lambdas"], own, spec.get("bound", 1.0)) for own in table.outputs], {}
    loss = FalseNegativeRate()
    each = [loss(outputs, labels) for outputs, labels in table.outputs]
    return (dict(zip(table.names, each, strict=True)) if call["data"]["form"] == "dict" else each), {"loss": loss}


# --- devices one by one -----------------------------------------------------------------------------------------------


def over_loopback(call, table):
    """Run one device for each row over a simulated network of frames, and describe what they agree on."""
    network, spec, method = network_of(call), call["engine"], call.get("method", "e-dcp")
    given = call["alpha"] if isinstance(call["alpha"], list) else [call["alpha"]]
    levels, options = tuple(map(exact_alpha, given)), make_options(method, call.get("options", {}))
    requirement = make_requirement(
        mixture_of(call, table) if "mixture" in call else "sizes", call.get("rank_rule", "auto"),
        call.get("pac_confidence"),
    )  # fmt: skip
    asynchronous = spec.get("mode") == "asynchronous"
    sizes = np.array([len(own) for own in table.scores])

    def start(k, journal):
        samples = WeightedScores.of([table.scores[k]])

        def make(net, row):
            if asynchronous:
                return async_protocol(method, net, row, samples, levels, options, requirement, sizes)
            secrets = secrets_of(net, row) if method == "p-dcp" else None
            return device_protocol(method, net, row, samples, levels, options, requirement, secrets=secrets)

        kind = AsyncDevice if asynchronous else Device
        digest = hashlib.sha256(np.asarray(table.scores[k], dtype=float).tobytes()).hexdigest()
        return kind(PeerSetup(k, network, {"method": method}, make, journal, Settings(), scores=digest))

    faults = LinkFaults(loss=spec.get("loss", 0.0), duplication=spec.get("duplication", 0.0))
    played = run_loopback(network, start, faults, np.random.default_rng(spec["seed"]), limit=LIMIT)
    outcomes = [device.result for device in played.devices]
    if any(device.phase != "finished" or device.result is None for device in played.devices):
        raise RuntimeError(f"{call['id']}: {[(device.phase, str(device.error)) for device in played.devices]}")
    joined = Answers.concatenate([np.array([k]) for k in range(network.devices)], outcomes)
    agreed = all(outcome.certificates == outcomes[0].certificates for outcome in outcomes)
    costs = [outcome.cost for outcome in outcomes]
    cost = None
    if all(one is not None for one in costs):
        rounds = {one.rounds for one in costs}
        cost = Cost(rounds.pop() if len(rounds) == 1 else -1, *(np.concatenate([getattr(one, what) for one in costs])
                                                               for what in ("numbers", "bits")))  # fmt: skip
    return {"agreed": agreed, **cells_of(joined, given, cost)}


# --- the result -------------------------------------------------------------------------------------------------------


def described(call, result):
    """Return a result as plain data."""
    name = call["kind"]
    if name == "p_values":
        return {
            "p_values": many(result.values.ravel()),
            "exact": [str(result.exact[value]) for value in dict.fromkeys(result.values.ravel().tolist())],
            "rule": result.rule,
            "mixture": result.mixture,
            "scores": result.scores,
            "classwise": result.classwise,
            "cost": cost_of(result.cost),
        }
    if name == "detect":
        found = {key: getattr(result, key) for key in ("rule", "steps", "seed", "tests", "flags", "kind")}
        exact = {key: getattr(result, key).hex() for key in ("fdr", "level", "threshold", "chance")}
        flagged = {device: np.flatnonzero(own).tolist() for device, own in result.flagged.items()}
        each = None if result.p_values is None else [many(own) for own in result.p_values.values()]
        return {**found, **exact, "draws": result.sample_size, "mixture": result.mixture, "flagged": flagged,
                "p_values": each, "cost": cost_of(result.cost)}  # fmt: skip
    if name == "quantiles":
        exact = {key: many(getattr(result, key)) for key in ("values", "rank_error")}
        return {**exact, "n": result.n, "devices": result.devices, "cost": cost_of(result.cost)}
    if name == "draws":
        return {**cells_of(result.outcome, call["alpha"], result.cost), "sizes": result.sizes.T.tolist()}
    groups = result.guarantee.groups
    more = {"group_rule": groups.rule, "members": {k: [*v] for k, v in groups.atoms.items()}} if groups else {}
    answers = [answer_of(result, answer) for answer in result.answers]
    return {"answers": answers, **(more if groups and groups.rule else {}), "cost": cost_of(result.cost)}


def answer_of(result, answer):
    """Return one threshold, why it may be trusted, and what it is for."""
    asked, part = result.guarantee, answer.part[-1] if answer.part else None
    weighting, loss, level = asked.weighting, asked.loss, answer.alpha
    if asked.sides is not None:
        level = asked.sides.levels(level)[part]
    if loss is not None:
        level = level / Fraction(str(float(loss.bound)))
    found = {
        "part": part,
        "alpha": float(level).hex(),
        "thresholds": many(answer.thresholds),
        "certificate": certificate_of(answer.certificate),
        "scores": answer.examples,
        "estimate": None if answer.estimate is None else answer.estimate.hex(),
        "bracket": None if answer.bracket is None else [float(end).hex() for end in answer.bracket],
        "weight_bound": None if weighting is None else float(weighting.bound).hex(),
    }
    if weighting is not None and weighting.names:
        found["part"] = [part, float(weighting.names[part]).hex()]
    if asked.centres is not None:
        cap = int(asked.centres.caps[int(part.split()[-1])])
        found["weight_bound"] = float(cap / 2**16).hex()
    if loss is not None:
        found |= {"risk": float(answer.alpha).hex(), "loss_bound": float(loss.bound).hex()}
    return {key: value for key, value in found.items() if value is not None}


def cells_of(outcome, alphas, cost):
    """Return the thresholds of every draw and level of an outcome."""
    answers = []
    for draw_, row in enumerate(outcome.certificates):
        for level, certificate in enumerate(row):
            answer = {
                "part": draw_,
                "alpha": float(exact_alpha(alphas[level])).hex(),
                "thresholds": many(outcome.thresholds[:, draw_, level]),
                "certificate": certificate_of(certificate),
            }
            if outcome.estimates is not None:
                answer["estimate"] = float(outcome.estimates[:, draw_, level].max()).hex()
            if outcome.brackets is not None:
                answer["bracket"] = many(outcome.brackets[:, draw_, level])
            answers.append(answer)
    return {"answers": answers, **({} if cost is None else {"cost": cost_of(cost)})}


def certificate_of(certificate):
    """Return a certificate without its sentences."""
    found = {ours: plain(getattr(certificate, theirs)) for theirs, ours in CERTIFICATE.items()}
    found = {key: value for key, value in found.items() if value is not None and value not in ("", [])}
    return {**found, "assumes": bool(certificate.assumption)}


def cost_of(cost):
    """Return what each device sent, exactly."""
    return {"rounds": cost.rounds, "numbers": many(cost.numbers), "bits": many(cost.bits)}


def many(values):
    """Return one float for each device: one text if all are the same, a digest if they are many."""
    texts = [float(value).hex() for value in np.asarray(values, dtype=float).tolist()]
    if len(texts) > 1 and len({*texts}) == 1:
        return f"{len(texts)} times {texts[0]}"
    return texts if len(texts) <= MANY else hashlib.sha256(" ".join(texts).encode()).hexdigest()[:24]


def plain(value):
    """Return a value as JSON has it, floats exactly."""
    if isinstance(value, tuple | list):
        return [plain(one) for one in value]
    if isinstance(value, Fraction):
        return str(value)
    return value.hex() if isinstance(value, float) else value


if __name__ == "__main__":  # one rank of an MPI job
    from mpi4py import MPI

    from tests.recorded.calls import CALLS

    answers = {call["id"]: replay(call) for call in CALLS if call.get("engine", {}).get("name") == "mpi"}
    if MPI.COMM_WORLD.rank == 0:
        json.dump(answers, sys.stdout)
