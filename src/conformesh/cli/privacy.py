"""``conformesh privacy``: who learns what from a run, what noise protects and costs, and what an account allows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from conformesh.cli import console, options
from conformesh.cli.command import PATH, Argument, ListOption, Option, command
from conformesh.cli.options import NetworkOptions, read_method_options
from conformesh.cli.private_runs import (
    Explanation,
    explain_privacy_account,
    explain_private_plan,
    explain_private_result,
)
from conformesh.cli.results import SavedRun, parse_saved_run, read_json
from conformesh.graph.network import Network
from conformesh.kernels.ranks import exact_alpha
from conformesh.methods import METHODS, exposure_of_method, exposure_of_result, get_method
from conformesh.privacy.exposure import Exposure
from conformesh.results.lambda_tests import LambdaTests
from conformesh.results.result import Result
from conformesh.scores.adapt import ADAPTATIONS

_COLUMNS = ("who learns", "what", "about", "numbers")


@command(
    Argument(
        "result",
        "[RESULT]",
        "What calibrate --out or --json wrote, or a device's result.json; - reads it from stdin.",
        required=False,
    ),
    Option("--plan", "Instead of a result: a run that was not made yet."),
    Option(
        "--account FOLDER",
        "Instead of a result: a device's folder of a mesh, or its privacy.json. Tells what was released, what "
        "may still be, and what will be refused.",
        type=PATH,
    ),
    Option("--method NAME", f"With --plan: {', '.join(METHODS)}."),
    Option(
        f"--adapt {'|'.join(ADAPTATIONS)}",
        "With --plan: adapted scores, as in calibrate; they reveal more.",
    ),
    Option("--mixture NAME", "With --plan: as in calibrate; with own no scores are sent.", default="sizes"),
    Option(
        "--mixture-bound <float>", "With --plan: as in calibrate; devices then send some of their scores to all others."
    ),
    options.devices_option("With --plan: how many devices, K."),
    Option(
        "--coalition <int>|NAME,...",
        "Devices that tell each other all they hear: by name, one alone with a comma behind it; or how many, "
        "and then those that learn most.",
        default="1",
    ),
    options.network_options(),
    options.json_option("Print one JSON object instead of the table."),
    ListOption(
        "--alpha <float>",
        "With --plan: tolerated miscoverage, by default 0.1. With a RESULT of a run with epsilon: read the "
        "threshold at another level, or several as 0.05,0.2, from the same release at no further cost.",
    ),
    options.scores_per_device_option("With --plan: scores that a device holds."),
    options.seed_option(),
    options.method_options(),
)
def privacy(
    result: str | None,
    plan: bool,
    account: Path | None,
    method: str | None,
    adapt: str | None,
    mixture: str,
    mixture_bound: str | None,
    devices: int | None,
    coalition: str,
    network: NetworkOptions,
    alpha: tuple[str, ...],
    scores_per_device: int,
    seed: int,
    options: dict[str, Any],
    as_json: bool,
) -> None:
    """Tell who learns what from a run on a mesh: neighbours, everybody, a server, and a coalition of devices.

    Of a run with epsilon also what its noise protects, what it costs, and thresholds at other levels. A result does
    not hold its map: name it with --network to see what a coalition of devices has learned.
    """
    if [result is not None, plan, account is not None].count(True) != 1:
        raise ValueError("give a RESULT, or --plan with --method and a network, or --account; one of the three")
    if account is not None:
        explanation = explain_privacy_account(account)
        console.show_result(explanation.data, as_json, explanation.show)
        return
    who = _coalition(coalition)
    private: Explanation | None = None
    if result is not None:
        asked = {"method": method, "adapt": adapt, "mixture_bound": mixture_bound, "devices": devices, **options}
        if given := next((name for name, value in asked.items() if value is not None), None):
            raise ValueError(f"--{given.replace('_', '-')} is for a run to come, and {result} is of one that was made")
        raw, name = read_json(result)
        if isinstance(raw, dict) and raw.get("format") == LambdaTests.__struct_config__.tag:
            tests = LambdaTests.from_dict(raw, name)
            found = exposure_of_result(tests, _map_of(tests, tests.devices, network, seed), coalition=who)
        else:
            saved = parse_saved_run(raw, name)
            private = explain_private_result(saved, [exact_alpha(level) for level in alpha])
            found = _of_result(saved, who, network, seed)
    else:
        if method is None:
            raise ValueError(f"say with --method what is to run: {', '.join(METHODS)}")
        if len(alpha) > 1:
            raise ValueError(f"--plan takes one --alpha, got {', '.join(alpha)}")
        level = alpha[0] if alpha else "0.1"
        built = network.build(devices, seed)
        chosen = read_method_options(method, options)
        if get_method(method).private and chosen.get("epsilon") is not None:
            private = explain_private_plan(built, exact_alpha(level), chosen)
        found = exposure_of_method(
            method,
            built,
            coalition=who,
            scores=scores_per_device,
            alpha=level,
            adapt=adapt,
            mixture=mixture,
            mixture_bound=mixture_bound,
            **chosen,
        )
    data = {**found.to_dict(), **({} if private is None else {"private": private.data})}
    console.show_result(data, as_json, lambda: _report(found, private))


def _coalition(text: str) -> int | list[str]:
    """Read how many devices, or their names."""
    if text.strip().isdigit():
        return int(text)
    return [name.strip() for name in text.split(",") if name.strip()]


def _map_of(result: Result | LambdaTests, devices: int, network: NetworkOptions, seed: int) -> Network | None:
    """Return the map of a run that was made, where it was named."""
    if network == NetworkOptions():
        return None
    built = network.build(None if network.file else devices, seed)
    return built.relabelled(result.device_ids) if network.file is None and devices == result.devices else built


def _of_result(saved: SavedRun, who: int | list[str], network: NetworkOptions, seed: int) -> Exposure:
    """Say what a run revealed whose result was saved, with its map where that was named."""
    one = saved.result
    if len(one) > 1:
        console.print_note(
            f"{saved.name} has several thresholds of one run: what is said of counts and scores is of each"
        )
    built = _map_of(one, saved.devices, network, seed)
    return exposure_of_result(one, built, coalition=who, devices=saved.devices)


def _report(found: Exposure, private: Explanation | None) -> None:
    if private is not None:
        private.show()
        print()
    print(f"{found.method} on {found.network}: what a run on a mesh reveals\n")
    rows = [
        (row.to, row.what, row.about, "varies" if row.numbers is None else f"{row.numbers:,}") for row in found.rows
    ]
    console.print_table(_COLUMNS, rows, right=("numbers",))
    print()
    for name, value in found.facts.items():
        print(f"{name}: {value}")
    if found.coalition:
        print(f"{found.summary()}")
    else:
        print("Name the network with --network to see what a coalition of devices learns.")
