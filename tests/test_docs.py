"""The documentation is true: its code runs and prints what it shows, its tables are fresh, its links lead somewhere."""

import doctest
import importlib
import importlib.util
import io
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import types
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest

from conformesh import METHODS, TOPOLOGIES, __version__
from conformesh.engines import ENGINES
from conformesh.graph.weights import WEIGHTS
from conformesh.lab.datasets.partition import PARTITIONS
from conformesh.protocols.aggregate import AGGREGATORS
from conformesh.scores import SCORES
from conformesh.scores.adapt import ADAPTATIONS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
BESIDE = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "examples/flower/README.md", "examples/pytorch/README.md")
PLACES = ("src", "tests", "docs", "benchmarks", "examples", "tools")
PAGES = [*map(ROOT.joinpath, BESIDE), *sorted(DOCS.rglob("*.md"))]
MODULES = sorted(
    ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
    for path in (ROOT / "src").rglob("*.py")
    if path.name != "__main__.py"
)
TABLES = (METHODS, TOPOLOGIES, SCORES, ADAPTATIONS, WEIGHTS, AGGREGATORS, PARTITIONS, ENGINES)


@pytest.fixture(scope="module")
def tool():
    """A function that imports one of the scripts in docs/, which import each other by plain names."""
    sys.path.insert(0, str(DOCS))
    yield importlib.import_module
    sys.path.remove(str(DOCS))


@pytest.fixture
def tables():
    """Leave the tables as they were, whatever a page or a skeleton registers."""
    before = [dict(table) for table in TABLES]
    yield
    for table, entries in zip(TABLES, before, strict=True):
        table.clear()
        table.update(entries)


# --- blocks that run --------------------------------------------------------------------------------------------------

TEST = re.compile(r"^ *def (test_\w+)", re.MULTILINE)
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NOT_RUN = re.compile(r"<!-- not run: (\S.*?) -->\s*\Z")
TIMINGS = [
    (re.compile(r'("?seconds"?: )[\d.e-]+'), r"\1#"),
    (re.compile(r"\b[\d.]+ (ms|s|seconds)\b"), r"# \1"),
]
SHELL = ("cat", "head", "tail", "ls", "echo", "printf")  # besides conformesh, what a page may show being typed


@dataclass
class Block:
    """A fenced block that runs, and what is shown as its output (None where nothing is)."""

    language: str
    text: str
    line: int
    shown: str | None


def blocks_of(page):
    """The python and console blocks of a page; a text block right after a python block is its output."""
    text = page.read_text(encoding="utf-8")
    found = []
    fences = [*FENCE.finditer(text)]
    for fence, after in itertools.zip_longest(fences, fences[1:]):
        if fence[1] not in ("python", "console") or NOT_RUN.search(text[: fence.start()]):
            continue
        follows = after is not None and after[1] == "text" and not text[fence.end() : after.start()].strip()
        shown = after[2] if follows and fence[1] == "python" else None
        found.append(Block(fence[1], fence[2], text[: fence.start()].count("\n") + 1, shown))
    return found


def assert_shown(shown, printed, where):
    """Compare what is shown with what was printed; timings differ, and ``...`` stands for anything."""

    def plain(text):
        for pattern, word in TIMINGS:
            text = pattern.sub(word, text)
        return "\n".join(line.rstrip() for line in text.strip().split("\n")) + "\n"

    same = doctest.OutputChecker().check_output(plain(shown), plain(printed), doctest.ELLIPSIS)
    assert same, f"{where} shows\n{plain(shown)}\nbut this was printed\n{plain(printed)}"


def run_python(block, namespace, where):
    if block.text.startswith(">>>"):
        test = doctest.DocTestParser().get_doctest(block.text, namespace, where, where, block.line)
        said = io.StringIO()
        doctest.DocTestRunner().run(test, out=said.write, clear_globs=False)
        assert not said.getvalue(), said.getvalue()
        namespace.update(test.globs)
        return
    code = compile("\n" * block.line + block.text, where, "exec", dont_inherit=True)
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(code, namespace)
    if block.shown is not None:
        assert_shown(block.shown, printed.getvalue(), where)


def run_console(block, where):
    for command in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        line, _, shown = command.replace("\\\n", " ").partition("\n")
        words = shlex.split(line, comments=True)
        if words[0] == "make":
            assert words[1] in make_targets(), f"{where}: the Makefile has no target {words[1]!r}"
            continue
        assert words[0] in ("conformesh", *SHELL), f"{where}: cannot run {words[0]!r}; say why in <!-- not run: ... -->"
        plain = words[0] == "conformesh" and not re.search(r"[|<>]", line)
        printed, code = run_here(words[1:]) if plain else run_in_shell(line)
        wrong = shown.startswith("error:")
        assert (code != 0) == wrong, f"{where}: `{line}` ended with {code}:\n{printed}"
        if shown.strip():
            assert_shown(shown, printed, where)


def run_here(words):
    """Run a command in this process: what a pipe sees, output and errors in the order in which they appear."""
    from conformesh.cli import app

    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(printed), pytest.raises(SystemExit) as end:
        app(words)
    return printed.getvalue(), end.value.code or 0


def run_in_shell(line):
    """Run a line with pipes or redirections, with a command `conformesh` that is this tree's."""
    shim = Path("bin")
    shim.mkdir(exist_ok=True)
    command = shim / "conformesh"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m conformesh.cli "$@"\n')
    command.chmod(0o755)
    path = f"{shim.resolve()}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        ["sh", "-c", line], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return done.stdout, done.returncode


def make_targets():
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("page", [page for page in PAGES if blocks_of(page)], ids=lambda page: page.stem)
def test_blocks_run_and_print_what_is_shown(page, tmp_path, monkeypatch, tables):
    """The blocks of a page share one namespace and one empty folder."""
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType(f"blocks_of_{page.stem.replace('-', '_')}")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # dataclasses look their module up
    for block in blocks_of(page):
        where = f"{page.relative_to(ROOT)}:{block.line}"
        if block.language == "python":
            run_python(block, module.__dict__, where)
        else:
            run_console(block, where)


def test_a_block_that_is_not_run_says_why():
    for page in PAGES:
        for found in re.finditer(r"^<!-- not run:?(.*?)-->", page.read_text(encoding="utf-8"), re.MULTILINE):
            assert len(found[1].split()) >= 2, f"{page.name}: a block is not run, for no reason"


def test_the_comparison_sees_a_difference():
    """A companion of the test above: a wrong digit goes red, a different time does not."""
    assert_shown("rank 918 ... done\nseconds: 0.1", "rank 918 and so on done\nseconds: 2.25", "here")
    with pytest.raises(AssertionError, match="this was printed"):
        assert_shown("rank 918", "rank 919", "here")
    with pytest.raises(AssertionError, match="cannot run 'curl'"):
        run_console(Block("console", "$ curl example.org\n", 1, None), "here")


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert not failed


# --- what is generated ------------------------------------------------------------------------------------------------


def test_generated_parts_are_fresh(tool):
    stale = [str(page.relative_to(ROOT)) for page in tool("generate").stale()]
    assert not stale, f"run `make fix` (python docs/generate.py): {', '.join(stale)}"


def test_a_stale_part_is_seen(tool):
    page = "before\n<!-- generated: scores -->\nold\n<!-- end -->\nafter"
    again = tool("generate").regenerated(page)
    assert "absolute-residual" in again
    assert "old" not in again
    assert again.startswith("before\n")
    assert again.endswith("\nafter")
    with pytest.raises(ValueError, match="no generated part is called 'scorse'"):
        tool("generate").regenerated(page.replace("scores", "scorse"))


def test_every_entry_has_its_place():
    methods, tables = (DOCS / "methods.md").read_text(), (DOCS / "tables.md").read_text()
    assert [name for name in METHODS if f"\n## {name}\n" not in methods] == []
    assert [name for table in TABLES[1:] for name in table if f"\n| `{name}` |" not in tables] == []
    helps = (DOCS / "command-line.md").read_text()
    from conformesh.cli import COMMANDS, SUBCOMMANDS

    names = [*COMMANDS, *(f"{group} {name}" for group, table in SUBCOMMANDS.items() for name in table)]
    assert [name for name in names if f"\n## conformesh {name}\n" not in helps] == []


def test_a_method_without_words_of_its_own_gets_a_section(tool, tables):
    METHODS["quiet"] = METHODS["local"]
    assert "## quiet\n\neach device on its own." in tool("generate").other_methods()


def test_every_public_module_is_in_the_reference():
    shown = set(re.findall(r"^::: (\S+)", "\n".join(page.read_text() for page in DOCS.rglob("*.md")), re.MULTILINE))
    missing = [
        name
        for name in MODULES
        if not any(name == one or one.startswith(f"{name}.") for one in shown)
        and not re.search(r"\._|^conformesh\.cli", name)
        and (importlib.util.find_spec(name).submodule_search_locations is None)
    ]
    assert missing == []


# --- references -------------------------------------------------------------------------------------------------------


def test_every_key_is_in_the_references(tool):
    known = set(tool("references").entries((DOCS / "references.bib").read_text(encoding="utf-8")))
    used = {method.description.paper for method in METHODS.values() if method.description.paper}
    for path in [*PAGES, *ROOT.glob("src/**/*.py"), *ROOT.glob("tests/**/*.py"), *ROOT.glob("benchmarks/*")]:
        if path.is_file() and path.suffix != ".png":
            used |= set(re.findall(r"\[([A-Z][A-Za-z]+(?:19|20)\d\d)\]", path.read_text(encoding="utf-8")))
    assert used <= known, f"not in docs/references.bib: {sorted(used - known)}"


def test_references_are_written_without_bibtex(tool):
    page = tool("references").page_of(tool("references").entries((DOCS / "references.bib").read_text(encoding="utf-8")))
    assert "Albert-László Barabási" in page
    assert not re.search(r"[{}\\]", page)


def test_the_paper_is_mapped(tool):
    mapped = tool("paper_to_code").tags_in(ROOT / "src")
    for item in ("Algorithm 1", "Algorithm 2", "Theorem 5.2", *(f"Eq. ({n})" for n in (4, 9, 16, 17, 18, 19, 23, 26))):
        assert mapped.get(item), f"no tag [Wen2025] {item} in the source"


def test_every_item_of_the_paper_has_code_and_a_test(tool):
    """The results too: all of Section 6 and the appendix, every figure and table."""
    rows = [row.strip("| ").split(" | ") for row in tool("paper_to_code").page(ROOT).splitlines()[2:]]
    for item, _, code, *tests in rows:
        assert code != "—", f"{item} has no code"
        assert tests, f"{item} has no test"
    results = {*(f"Section 6.{n}" for n in range(1, 5)), *(f"Figure {n}" for n in range(2, 18)), "Table 1"}
    appendix = {*(f"Appendix A.{n}" for n in range(1, 4)), *(f"Appendix B.{n}" for n in range(1, 7))}
    assert results | appendix <= {row[0] for row in rows}


def test_a_tag_belongs_to_the_function_around_it(tool, tmp_path):
    source = '"""[Wen2025] Algorithm 2."""\n\ndef f():\n    """As in [Wen2025] Theorem 5.2, Eq. (26)."""\n'
    (tmp_path / "x.py").write_text(source + '\n\ndef g():\n    "[Lu2023] Theorem 4.3; [Wen2025] Eqs. (10)-(12)"\n')
    found = {item: [place.name for place in places] for item, places in tool("paper_to_code").tags_in(tmp_path).items()}
    ten_to_twelve = {f"Eq. ({n})": ["g"] for n in (10, 11, 12)}
    assert found == {"Algorithm 2": [""], "Theorem 5.2": ["f"], "Eq. (26)": ["f"], **ten_to_twelve}


# --- links ------------------------------------------------------------------------------------------------------------


def slugs(page):
    """Anchors of a page, as MkDocs and GitHub make them from its headings."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    given = set(re.findall(r'<a id="([^"]+)"></a>', text))
    return given | {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    links = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|href)="([^"]+)"', text)
    for link in links:
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), f"{page.name} links to {link}, which is not there"
        if anchor and target.suffix == ".md":
            assert anchor in slugs(target), f"{page.name} links to {link}, but there is no such heading"


def test_the_navigation_lists_every_page():
    listed = set(re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    tutorials = {f"tutorials/{script.stem}.md" for script in DOCS.glob("tutorials/*.py")}
    assert listed == {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")} | tutorials


def test_tests_that_pages_name_exist():
    """A claim that names its test must name one that is there; arguments such as `test_weights` have fewer words."""
    known = {name for path in (ROOT / "tests").rglob("test_*.py") for name in TEST.findall(path.read_text("utf-8"))}
    for page in PAGES:
        named = {*re.findall(r"`(?:test_\w+\.py::)?(test(?:_[a-z0-9]+){3,})`", page.read_text("utf-8"))}
        assert not (missing := named - known), f"{page.name} names tests that do not exist: {sorted(missing)}"


def test_files_that_pages_name_exist():
    """Whoever reads of a Python file will look for it. `name.py` stands for a file that the reader writes."""
    known = [path.relative_to(ROOT).as_posix() for part in PLACES for path in (ROOT / part).rglob("*.py")]
    for page in PAGES:
        text = FENCE.sub("", page.read_text(encoding="utf-8"))
        named = {*re.findall(r"`((?:[\w.-]+/)*(?!name\.py)\w+\.py)(?:::\w+)?`", text)}
        missing = [name for name in named if not any(f"/{path}".endswith(f"/{name}") for path in known)]
        assert not missing, f"{page.name} names files that do not exist: {sorted(missing)}"


def test_commands_that_pages_name_exist():
    for page in [*PAGES, ROOT / "CHANGELOG.md"]:
        for target in re.findall(r"`make ([a-z-]+)", page.read_text(encoding="utf-8")):
            assert target in make_targets(), f"{page.name} names `make {target}`"


# --- equations --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_equations_of_pages_can_be_drawn(page, tool):
    """Inline between dollars, as GitHub draws them; displays between square brackets or two dollars."""
    text = re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text(encoding="utf-8")))
    for display, latex in equations(text):
        assert "<math" in tool("mathml").mathml(latex, display=display)
    rest = EQUATION.sub("", text)
    assert "$" not in rest, f"{page.name}: a dollar without its partner: {rest[rest.index('$') - 40 :][:80]}"


EQUATION = re.compile(r"\$\$(.+?)\$\$|(?<![\\$])\$(?!\s)([^$\n]+?(?:\n[^$\n]+?)*)(?<!\s)\$", re.DOTALL)


def equations(text):
    for found in EQUATION.finditer(text):
        yield bool(found[1]), found[1] or found[2]


@pytest.mark.parametrize("name", MODULES)
def test_equations_of_docstrings_can_be_drawn(name, tool):
    text = Path(importlib.util.find_spec(name).origin).read_text(encoding="utf-8")
    for latex in re.findall(r"^ *\.\. math:: (.*(?:\n +\S.*)*)", text, re.MULTILINE):
        assert "<math" in tool("mathml").mathml(" ".join(latex.split()), display=True)
    for latex in re.findall(r":math:`([^`]+)`", text):
        assert "<math" in tool("mathml").mathml(" ".join(latex.split()))


def test_drawn_equations(tool):
    mathml = tool("mathml").mathml
    assert mathml(r"\tfrac1K") == "<math><mfrac><mn>1</mn><mi>K</mi></mfrac></math>"
    assert "<munder><mo>max</mo><mi>k</mi></munder>" in mathml(r"\max_k n_k^2", display=True)
    assert "<msubsup><mi>n</mi><mi>k</mi><mn>2</mn></msubsup>" in mathml(r"\max_k n_k^2")
    assert mathml("n'_i") == "<math><msubsup><mi>n</mi><mi>i</mi><mo>′</mo></msubsup></math>"
    assert "<mi>cosh</mi>" in mathml(r"\cosh \theta")
    assert '<mo>=</mo><mo form="prefix">+</mo><mi>∞</mi>' in mathml(r"q = +\infty")
    breakable = tool("mathml").breakable
    assert breakable(r"\#\{s \le t\} \ge r = 1").count("<wbr>") == 2, "lines end after relations, not inside braces"
    assert breakable(r"\alpha") == "<math><mi>α</mi></math>"
    assert "<mn>1000</mn>" in mathml("1000 < n")
    assert "&lt;" in mathml("1000 < n")
    for wrong, message in ((r"\oint x", r"does not know \\oint"), (r"\frac{1", "ends too early")):
        with pytest.raises(ValueError, match=message):
            mathml(wrong)


def test_docstrings_become_markdown(tool):
    text = """Find it ([Wen2025] Eq. (1)), not `[Wen2025]`.

    .. math:: a
              + b

    Assumes     a graph
    Departures  - one
                  more
                - two

    Reference: [Lu2023].
    """
    found = tool("docstrings").as_markdown(text)
    assert "Notes" not in found
    assert r"([\[Wen2025\]][wen2025] Eq. (1)), not `[Wen2025]`" in found
    assert "\\[a + b\\]" in found
    assert "- **Assumes.**\n        a graph" in found
    assert "- **Departures.**\n\n    - one\n        more\n\n    - two" in found
    assert r"**Reference.** [\[Lu2023\]][lu2023]" in found
    loose = "Do it.\n\nParameters\n----------\nx\n    A number.\n\nReference: [Lu2023].\n\n>>> 1\n1\n"
    found = tool("docstrings").as_markdown(loose)
    assert "    A number.\n\nNotes\n-----\n" in found
    assert "\n\nExamples\n--------\n>>> 1" in found


# --- the site ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_site_builds(tmp_path):
    """Strict: a dead link, an unknown reference or an equation that cannot be drawn fails the build."""
    pytest.importorskip("mkdocs", reason="the site needs the docs extra: pip install 'conformesh[docs]'")
    command = [sys.executable, str(DOCS / "versions.py"), "--site", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    root = tmp_path / "site" / __version__
    assert [each["version"] for each in json.loads((root.parent / "versions.json").read_text())] == [__version__]
    home = (root / "index.html").read_text(encoding="utf-8")
    assert '"version": {"provider": "mike"}' in home, "the theme does not show the switch between versions"
    site = {path.relative_to(root).as_posix(): path for path in root.rglob("*")}
    pages = {name: path.read_text(encoding="utf-8") for name, path in site.items() if name.endswith(".html")}
    for name, page in pages.items():
        assert not re.findall(r'<(?:link|script|img)[^>]+(?:src|href)="https?://[^"]+"', page), (
            f"{name} fetches something"
        )
        assert "arithmatex" not in page, f"{name} has an equation that was not drawn"
    assert '<math display="block">' in pages["guarantees.html"]
    assert '<math display="block">' in pages["reference/protocols.html"]
    heading = re.search(r'<h3 id="([^"]+)"', pages["reference/calibrating.html"])
    assert heading[1] == "conformesh.api.calibrate", "the reference begins with what people call"
    for script in DOCS.glob("tutorials/*.py"):
        assert {
            f"tutorials/{script.stem}.html",
            f"tutorials/{script.stem}.ipynb",
            f"tutorials/{script.stem}-1.png",
        } <= set(site)
