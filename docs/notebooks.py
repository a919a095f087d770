r"""Tutorials: plain scripts, run where they are needed, become pages of the site and notebooks to download.

A script in docs/tutorials/ is read as paragraphs. A paragraph of comments at the left margin is Markdown; what stands
between is a cell of code. A cell shows what it prints, the pictures it leaves open and the value of its last line:

    # # First sets
    #
    # Some words.

    import numpy as np

    # Words between two cells.

    np.arange(3)

    python docs/notebooks.py docs/tutorials/first-sets.py --out folder    the page, its pictures and the notebook

Each script runs in a process and a folder of its own. Nothing that it shows is kept in the repository.
"""

from __future__ import annotations

import argparse
import ast
import base64
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SCRIPTS = HERE / "tutorials"
DPI = 144


@dataclass
class Cell:
    """Words, or code with what it showed."""

    kind: str  # markdown or code
    text: str
    line: int
    printed: str = ""
    value: dict[str, str] = field(default_factory=dict)  # of the last line: text/plain, and text/html if it has that
    pictures: list[tuple[str, bytes]] = field(default_factory=list)  # what each is, and its PNG


def scripts() -> list[Path]:
    """Return the tutorials."""
    return sorted(SCRIPTS.glob("*.py"))


def cells_of(text: str) -> list[Cell]:
    r"""Split a script into cells.

    >>> [(cell.kind, cell.text) for cell in cells_of("# # Title\n#\n# Words.\n\nx = 1\n\nprint(x)\n")]
    [('markdown', '# Title\n\nWords.'), ('code', 'x = 1\n\nprint(x)')]
    """
    found: list[Cell] = []
    line = 1
    for paragraph in re.split(r"(\n\s*\n)", text.strip("\n")):
        if paragraph.strip():
            lines = paragraph.split("\n")
            words = all(each.startswith("#") for each in lines)
            content = "\n".join(each.removeprefix("#").removeprefix(" ") for each in lines) if words else paragraph
            kind = "markdown" if words else "code"
            if found and found[-1].kind == kind:
                blank = "\n" * (line - found[-1].line - found[-1].text.count("\n"))
                found[-1].text += blank + content
            else:
                found.append(Cell(kind, content, line))
        line += paragraph.count("\n")
    return found


def run(cells: list[Cell], name: str) -> list[Cell]:
    """Run the cells one after the other, in this process and folder; each keeps what it shows."""
    module = types.ModuleType(f"tutorial_{name.replace('-', '_')}")
    sys.modules[module.__name__] = module  # dataclasses look their module up
    try:
        for cell in cells:
            if cell.kind == "code":
                _run_cell(cell, module, name)
    finally:
        del sys.modules[module.__name__]
    return cells


def _run_cell(cell: Cell, module: types.ModuleType, name: str) -> None:
    tree = ast.parse("\n" * (cell.line - 1) + cell.text, f"{name}.py")
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    value = None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, f"{name}.py", "exec", dont_inherit=True), module.__dict__)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"{name}.py", "eval", dont_inherit=True), module.__dict__)
    cell.printed = printed.getvalue()
    cell.pictures = [*_pictures(value)]
    if value is not None and not cell.pictures:
        cell.value["text/plain"] = repr(value)
        if hasattr(value, "_repr_html_") and (drawn := value._repr_html_()):
            cell.value["text/html"] = drawn


def _pictures(value: Any) -> Iterator[tuple[str, bytes]]:
    """Take every figure that is open, and one that the last line returned; a figure's `num` says what it shows."""
    import matplotlib.pyplot as plt
    from matplotlib.figure import Figure

    figures = [plt.figure(number) for number in plt.get_fignums()]
    if isinstance(value, Figure) and value not in figures:
        figures.append(value)
    for figure in figures:
        titles = [axes.get_title() or axes.get_ylabel() for axes in figure.axes]
        file = io.BytesIO()
        figure.savefig(file, dpi=DPI, metadata={"Software": None})
        what = figure.get_label() or figure.get_suptitle() or "; ".join(filter(None, titles))
        yield " ".join(what.split()) or "picture", file.getvalue()
    plt.close("all")


def page_of(cells: list[Cell], name: str) -> str:
    """Return the page, in Markdown; its pictures are `name-1.png` and so on, beside it."""
    parts = []
    pictures = 0
    for cell in cells:
        if cell.kind == "markdown":
            parts.append(cell.text)
            continue
        parts.append(f"```python\n{cell.text}\n```")
        if cell.printed.strip():
            parts.append(_shown(cell.printed))
        if "text/html" in cell.value:
            parts.append(f'<div class="shown-html">{_one_line(cell.value["text/html"])}</div>')
        elif cell.value:
            parts.append(_shown(cell.value["text/plain"]))
        for what, _ in cell.pictures:
            pictures += 1
            parts.append(f"![{what}]({name}-{pictures}.png)")
    link = f'<a class="md-button" href="{name}.ipynb" download>Download as a notebook</a>'
    title, rest = re.split(r"(?<=\n)\n|\Z", parts[0] + "\n\n", maxsplit=1)
    return "\n\n".join([title.strip(), link, rest.strip(), *parts[1:]]) + "\n"


def _shown(text: str) -> str:
    return f"```text {{ .shown }}\n{text.rstrip()}\n```"


def _one_line(markup: str) -> str:
    """Markdown ends a block of HTML at a blank line; spaces of `pre` are written out."""
    kept = re.sub(r"<pre.*?</pre>", lambda found: found[0].replace("\n", "&#10;"), markup, flags=re.DOTALL)
    return re.sub(r"\s*\n\s*", " ", kept).strip()


def notebook_of(cells: list[Cell]) -> dict[str, Any]:
    """Return a notebook (nbformat 4.5) with what every cell showed."""
    made: list[dict[str, Any]] = []
    for number, cell in enumerate(cells):
        one: dict[str, Any] = {"id": f"cell-{number}", "cell_type": cell.kind, "metadata": {}}
        source = cell.text if cell.kind == "code" else _for_notebooks(cell.text)
        one["source"] = source.splitlines(keepends=True)
        if cell.kind == "code":
            one |= {"execution_count": number, "outputs": _outputs(cell, number)}
        made.append(one)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": made, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def _for_notebooks(words: str) -> str:
    """Pages are not beside a notebook: links to them lose their target and keep their words."""
    return re.sub(r"\[([^\]]+)\]\((?![a-z]+:)[^)]+\)", r"*\1*", words)


def _outputs(cell: Cell, number: int) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    if cell.printed:
        out.append({"output_type": "stream", "name": "stdout", "text": cell.printed.splitlines(keepends=True)})
    for what, picture in cell.pictures:
        data = {"image/png": base64.b64encode(picture).decode(), "text/plain": what}
        out.append({"output_type": "display_data", "data": data, "metadata": {}})
    if cell.value:
        result = {"output_type": "execute_result", "execution_count": number, "data": cell.value, "metadata": {}}
        out.append(result)
    return out


def write(cells: list[Cell], name: str, folder: Path) -> None:
    """Write page, notebook and pictures into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text(page_of(cells, name), encoding="utf-8")
    (folder / f"{name}.ipynb").write_text(json.dumps(notebook_of(cells), indent=1) + "\n", encoding="utf-8")
    pictures = [picture for cell in cells for _, picture in cell.pictures]
    for number, picture in enumerate(pictures, start=1):
        (folder / f"{name}-{number}.png").write_bytes(picture)


def build(script: Path, folder: Path) -> None:
    """Run a script in a process and a folder of its own, and write what it became."""
    with tempfile.TemporaryDirectory() as empty:
        command = [sys.executable, str(HERE / "notebooks.py"), str(script.resolve()), "--out", str(folder.resolve())]
        environment = {**os.environ, "MPLBACKEND": "agg"}
        done = subprocess.run(command, cwd=empty, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{script.name} failed:\n{done.stdout}{done.stderr}")


def main() -> None:
    """Run one script here."""
    parser = argparse.ArgumentParser(description="Make a page and a notebook of a script.")
    parser.add_argument("script", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    name = asked.script.stem
    write(run(cells_of(asked.script.read_text(encoding="utf-8")), name), name, asked.out)


if __name__ == "__main__":
    main()
