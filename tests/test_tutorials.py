"""The tutorials run, and become pages and notebooks."""

import base64
import importlib
import json
import re
import sys
from pathlib import Path

import pytest

from conformesh import METHODS

DOCS = Path(__file__).parents[1] / "docs"
SCRIPTS = sorted((DOCS / "tutorials").glob("*.py"))
NEEDS = {"from-mapie": "mapie", "real-mesh": "zenoh"}
SLOW = ("real-mesh",)  # five processes


@pytest.fixture
def notebooks(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    return importlib.import_module("notebooks")


@pytest.mark.parametrize(
    "script", [pytest.param(s, marks=[pytest.mark.slow] * (s.stem in SLOW), id=s.stem) for s in SCRIPTS]
)
def test_a_tutorial_runs_and_becomes_a_page_and_a_notebook(script, notebooks, tmp_path, monkeypatch):
    """It shows a certificate and a picture, and says where to go next; no word of the page is lost."""
    if script.stem in NEEDS:
        pytest.importorskip(NEEDS[script.stem], exc_type=ImportError)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["tutorial"])
    import matplotlib as mpl

    mpl.use("agg")
    before = dict(METHODS)
    try:
        cells = notebooks.run(notebooks.cells_of(script.read_text(encoding="utf-8")), script.stem)
    finally:
        METHODS.clear()
        METHODS.update(before)
    notebooks.write(cells, script.stem, tmp_path / "made")
    page = (tmp_path / "made" / f"{script.stem}.md").read_text(encoding="utf-8")
    assert page.startswith("# ")
    assert "the rank was counted exactly" in page
    assert "## Where to go next" in page
    pictures = re.findall(r"!\[(.*?)\]\((.*?)\)", page)
    assert pictures
    for words, picture in pictures:
        assert len(words.split()) > 2, f"{picture} has no words for who cannot see it"
        assert (tmp_path / "made" / picture).read_bytes().startswith(b"\x89PNG")
    notebook = json.loads((tmp_path / "made" / f"{script.stem}.ipynb").read_text(encoding="utf-8"))
    assert_is_notebook(notebook)


def assert_is_notebook(notebook):
    try:
        import nbformat
    except ImportError:
        assert notebook["nbformat"] == 4
    else:
        nbformat.validate(notebook)
    assert not [cell for cell in notebook["cells"] if not cell["source"]]


def test_there_are_seven_and_the_site_lists_them():
    listed = re.findall(r": tutorials/(\S+)\.md$", (DOCS.parent / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(listed) == [script.stem for script in SCRIPTS]
    assert len(listed) == 7


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_links_of_tutorials_lead_somewhere(script):
    for link in re.findall(r"\]\((?![a-z]+:)([^)#]+)", script.read_text(encoding="utf-8")):
        assert (script.parent / link).exists(), f"{script.name} links to {link}, which is not there"


def test_cells_show_what_they_print_draw_and_end_with(notebooks, monkeypatch):
    import matplotlib as mpl

    mpl.use("agg")
    text = """# # Title
#
# Words with a [link](../x.md).

import matplotlib.pyplot as plt


def f(x):
    return x + 1


print(f(1))

# More words.

plt.subplots(num="A small picture")
f(2);

# And more.

class Shown:
    def _repr_html_(self):
        return "<b>three</b>\\n\\n<pre>a\\nb</pre>"


Shown()
"""
    cells = notebooks.run(notebooks.cells_of(text), "example")
    assert [cell.kind for cell in cells] == ["markdown", "code"] * 3
    assert cells[1].text.startswith("import matplotlib.pyplot as plt\n\n\ndef f(x):")
    assert cells[1].printed == "2\n"
    assert [what for what, _ in cells[3].pictures] == ["A small picture"]
    page = notebooks.page_of(cells, "example")
    assert "![A small picture](example-1.png)" in page
    assert '<div class="shown-html"><b>three</b> <pre>a&#10;b</pre></div>' in page
    notebook = notebooks.notebook_of(cells)
    assert_is_notebook(notebook)
    assert notebook["cells"][0]["source"][-1] == "Words with a *link*."
    drawn = notebook["cells"][3]["outputs"][0]["data"]["image/png"]
    assert base64.b64decode(drawn).startswith(b"\x89PNG")


def test_a_tutorial_that_fails_says_which_and_where(notebooks, tmp_path):
    script = tmp_path / "wrong.py"
    script.write_text("# # Wrong\n\nx = 1\n\n# Words.\n\n1 / 0\n")
    with pytest.raises(RuntimeError, match=r'(?s)wrong.py failed.*File "wrong.py", line 7.*ZeroDivisionError'):
        notebooks.build(script, tmp_path / "out")
