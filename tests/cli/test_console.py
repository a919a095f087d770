"""What the terminal sees, and what a pipe does."""

from __future__ import annotations

import inspect
import io
import json
import re
import subprocess
import sys
import time
from importlib import import_module

import pytest

import conformesh
import conformesh.common.progress as progress_bars
from conformesh import __version__
from conformesh.cli import COMMANDS, SUBCOMMANDS, command, console, load_command
from conformesh.common.quantities import format_bits


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_version_and_help(run):
    assert run("--version").stdout == f"conformesh {__version__}\n"
    page = run("--help")
    assert page.exit_code == 0
    assert all(name in page.stdout for name in COMMANDS)
    assert run().stdout == page.stdout  # no words at all ask for help
    for name in COMMANDS:
        assert f"Usage: conformesh {name}" in run(name, "--help").stdout


@pytest.mark.parametrize(
    ("bits", "words"),
    [(0, "0"), (64, "64 bit"), (999.9, "1 kbit"), (102_400, "102 kbit"), (9_600_000, "9.6 Mbit"), (2.5e9, "2.5 Gbit")],
)
def test_bits_for_people(bits, words):
    assert format_bits(bits) == words


def test_a_bar_appears_for_slow_work_on_a_terminal_only(monkeypatch):
    def work(stream: io.StringIO, patience: float) -> str:
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr(progress_bars, "BAR_DELAY", patience)
        with progress_bars.Progress("thinking", unit="rounds") as progress:
            for _ in range(3):
                time.sleep(0.1)
                progress.step()
        return stream.getvalue()

    monkeypatch.setenv("TERM", "xterm")
    assert "thinking" in work(Terminal(), 0.0)
    assert work(Terminal(), 60.0) == ""
    assert work(io.StringIO(), 0.0) == ""


def test_tables_are_ruled_on_a_terminal_and_aligned_in_a_pipe(monkeypatch):
    def printed(stream: io.StringIO) -> str:
        monkeypatch.setattr(sys, "stdout", stream)
        rows = [("a", "[b]", "1"), ("a", "c", "22"), ("d", "e", "3")]
        console.print_table(("one", "two", "number"), rows, right=("number",), group_by="one")
        console.print_facts("title", [("name", "[value]")])
        return stream.getvalue()

    assert printed(io.StringIO()).splitlines() == [
        "one  two  number",
        "---  ---  ------",
        "a    [b]       1",
        "a    c        22",
        "",
        "d    e         3",
        "name: [value]",
    ]
    monkeypatch.setenv("TERM", "xterm")
    shown = re.sub(r"\x1b\[[0-9;]*m", "", printed(Terminal()))
    assert "─" in shown
    assert "[b]" in shown
    assert "[value]" in shown


WIDE = [
    ("absolute-residual", "neighbours", "how far the label lies from the prediction", "1,020", "26.5"),
    ("q-dcp", "server", "smoothed quantile regression", "7", "1,234,567"),
]


@pytest.mark.parametrize("width", [20, 40, 60, 80, 110, 200])
def test_words_and_numbers_are_whole_at_any_width(monkeypatch, width):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(width))
    stream = Terminal()
    monkeypatch.setattr(sys, "stdout", stream)
    columns = ("name", "needs", "summary", "required rank", "numbers")
    console.print_table(columns, WIDE, right=("required rank", "numbers"))
    shown = re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue())
    words = shown.split()
    for word in {word for row in WIDE for cell in row for word in cell.split()}:
        assert word in words
    longest = max(len(word) for row in (*WIDE, columns) for cell in row for word in cell.split())
    assert max(map(len, shown.splitlines())) <= max(width, longest + max(map(len, columns)) + 2)


def test_ranks_of_several_levels_stand_side_by_side(run, scores):
    """A level that needs more scores than there are: no inequality is printed that does not hold."""
    answer = run("calibrate", scores, "--alpha", "0.2,0.0001")
    head, _, one, other = answer.stdout.splitlines()[:4]
    assert head.split("  ")[0].strip() == "alpha"
    assert "required rank  counted  of scores" in head
    assert "<=" not in answer.stdout
    n = int(one.split()[-1])
    required, *others = [int(word) for word in other.split()[-3:]]
    assert required > n
    assert others == [n, n]


def test_commands_exit_as_they_should(command, scores, tmp_path):
    good = command("calibrate", scores, "--json")
    assert good.returncode == 0
    assert good.stderr == ""
    assert json.loads(good.stdout)["network"] == "torus 4x3"
    bad = command("calibrate", "-", input="device,score\n1,x\n")
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr == "error: standard input, line 2: score must be a number, got 'x'; repair or drop this row\n"


def test_a_closed_pipe_is_no_error(command, environment, scores, tmp_path):
    assert command("calibrate", scores, "--out", "r.json").returncode == 0
    (tmp_path / "p.csv").write_text("a,b\n" + "0.5,0.5\n" * 50_000)
    words = [sys.executable, "-m", "conformesh.cli", "predict", "r.json", "p.csv", "--score", "lac"]
    with subprocess.Popen(
        words, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "row,size,set\n"
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 1


HEAVY = ("matplotlib", "sklearn", "polars", "networkx", "rich")


def test_help_loads_nothing_that_only_one_command_needs(environment):
    script = (
        "import sys\n"
        "from conformesh.cli import app\n"
        "try:\n    app(['--help'])\nexcept SystemExit:\n    pass\n"
        f"print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == "[]\n"


def test_calibrate_computes_little_beside_loading_its_libraries(command, scores, environment):
    """Processor time against a bare import of what it cannot do without, in the same run: about 2.5, at most 4.

    A kernel that is compiled anew instead of found in the cache, or a heavy library loaded early, would exceed that.
    The seconds themselves are in the benchmarks.
    """
    resource = pytest.importorskip("resource")

    def used(run):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert run().returncode == 0
        return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before.ru_utime

    def libraries():
        words = [sys.executable, "-c", "import numba, polars, click"]
        return subprocess.run(words, env=environment, capture_output=True, timeout=60, check=False)

    command("calibrate", scores, "--json")  # fills the cache
    bare = min(used(libraries) for _ in range(2))
    whole = min(used(lambda: command("calibrate", scores, "--json")) for _ in range(2))
    assert whole < 4 * bare, (whole, bare)


def test_the_package_itself_is_a_command(environment):
    done = subprocess.run(
        [sys.executable, "-m", "conformesh", "--version"], env=environment, capture_output=True, text=True, check=True
    )
    assert conformesh.__version__ in done.stdout


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", ["calibrate", "plan"])
def test_help_on_a_terminal_is_in_boxes_that_fit(name, width, monkeypatch, capsys):
    """No line is longer than the screen, and no word of a flag is cut."""
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(command, "is_terminal", lambda: True)
    with pytest.raises(SystemExit):
        load_command(COMMANDS, name)(["--help"], prog_name=f"conformesh {name}")
    page = capsys.readouterr().out
    assert {len(line) for line in page.splitlines() if line.startswith(("╭", "│", "╰"))} == {width}
    assert "╭─ Guarantee ─" in page
    assert "╭─ Options of h-dcp ─" in page
    assert "sizes|paper|" in page


def every_command():
    """Return every command, with the words that call it."""
    for name in COMMANDS:
        yield name, getattr(import_module(f"conformesh.cli.{COMMANDS[name][0]}"), name)
        for sub in SUBCOMMANDS.get(name, ()):
            yield f"{name} {sub}", load_command(SUBCOMMANDS[name], sub)


@pytest.mark.parametrize(
    ("name", "found"), [*every_command()], ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_command_takes_what_its_options_and_groups_give(name, found):
    """Types do not check it: every parameter has an option or a group, and nothing else is handed over."""
    found.declare_all()
    given = {part.name for part in found.declared}
    parameters = inspect.signature(found.function).parameters.values()
    named = {one.name for one in parameters if one.kind is not inspect.Parameter.VAR_KEYWORD}
    assert named <= given
    if len(named) == len(parameters):
        assert named == given
