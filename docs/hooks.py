"""MkDocs hooks: equations become MathML, ``[Wen2025]`` a link, tutorials are run, and results/ is part of the site."""

from __future__ import annotations

import html
import logging
import re
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import notebooks
from docstrings import linked
from mathml import breakable, mathml
from mkdocs.structure.files import File

log = logging.getLogger("mkdocs.hooks")

INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
DISPLAY = re.compile(r'<div class="arithmatex">\\\[(.*?)\\\]</div>', re.DOTALL)

NEXT_TO = re.compile(r"((?:[(\[“]+)?<math>(?:(?!</math>).)*</math>(?:-\w+)?(?:[,.;:!?)\]”]|'s)+)")


def on_files(files: Any, *, config: Any) -> Any:
    """Add the pictures and tables of results/, which stand beside the documentation, and what tutorials become."""
    for path in sorted((Path(config["docs_dir"]).parent / "results").glob("*.*")):
        if path.suffix in (".png", ".pdf", ".csv", ".json"):
            files.append(File.generated(config, f"results/{path.name}", abs_src_path=str(path)))
    with ThreadPoolExecutor(2) as pool:
        built = pool.map(lambda script: made(script, script.read_text(encoding="utf-8")), notebooks.scripts())
        for name, content in (each for one in built for each in one.items()):
            files.append(File.generated(config, f"tutorials/{name}", content=content))
    return files


@cache
def made(script: Path, text: str) -> dict[str, bytes]:
    """Run a tutorial once for each text of it, and return its page, its pictures and its notebook."""
    with tempfile.TemporaryDirectory() as folder:
        notebooks.build(script, Path(folder))
        return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Link the keys of the references, but for their own page; results/ is inside the site, not beside it."""
    markdown = markdown.replace("](../results/", "](results/")
    markdown = re.sub(r"(\]\((?:[\w./-]*/)?[\w-]+)\.py\)", r"\1.md)", markdown)  # a tutorial, where its page is
    return markdown if page.file.src_uri == "references.md" else linked(markdown)


def on_page_content(content: str, *, page: Any, **_: Any) -> str:
    """Draw the equations."""

    def drawn(found: re.Match[str], display: bool) -> str:
        try:
            latex = html.unescape(found[1])
            return mathml(latex, display=True) if display else breakable(latex)
        except ValueError as problem:
            log.warning("%s: %s", page.file.src_uri, problem)
            return f"<code>{found[1]}</code>"

    content = DISPLAY.sub(lambda found: drawn(found, True), content)
    content = INLINE.sub(lambda found: drawn(found, False), content)
    return NEXT_TO.sub(r'<span class="nobreak">\1</span>', content)
