"""MkDocs hooks: equations become MathML, ``[Wen2025]`` in the text becomes a link to the references."""

from __future__ import annotations

import html
import logging
import re
from typing import Any

from docstrings import linked
from mathml import mathml

log = logging.getLogger("mkdocs.hooks")

INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
DISPLAY = re.compile(r'<div class="arithmatex">\\\[(.*?)\\\]</div>', re.DOTALL)


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Link the keys of the references, but for their own page."""
    return markdown if page.file.src_uri == "references.md" else linked(markdown)


def on_page_content(content: str, *, page: Any, **_: Any) -> str:
    """Draw the equations."""

    def drawn(found: re.Match[str], display: bool) -> str:
        try:
            return mathml(html.unescape(found[1]), display=display)
        except ValueError as problem:
            log.warning("%s: %s", page.file.src_uri, problem)
            return f"<code>{found[1]}</code>"

    content = DISPLAY.sub(lambda found: drawn(found, True), content)
    return INLINE.sub(lambda found: drawn(found, False), content)
