r"""What the API pages make of docstrings: a Griffe extension that turns our conventions into Markdown.

- ``.. math::`` and ``:math:`` become arithmatex, which `hooks.py` turns into MathML;
- ``[Wen2025]`` becomes a link to the references;
- the contract of a protocol (Assumes, Guarantees, Message, Departures) becomes a list;
- ``Reference:`` and ``Departures:`` start their own paragraphs.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

try:
    from griffe import Extension
except ImportError:  # the rewriting is tested where no documentation tools are installed
    Extension = object  # type: ignore[assignment,misc]

KEY = re.compile(r"(?<!\[)\[([A-Z][A-Za-z]+(?:19|20)\d\d)\](?![\[(:])")
CONTRACT = ("Assumes", "Guarantees", "Message", "Departures")


class Docstrings(Extension):  # type: ignore[misc]
    """Rewrites each docstring before it is parsed."""

    def on_instance(self, *, obj: Any, **_: Any) -> None:
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """Return a docstring in Markdown."""
    text = inspect.cleandoc(text)
    text = re.sub(r"^( *)\.\. math:: ?(.*(?:\n(?:\1 +\S.*))*)", _display, text, flags=re.MULTILINE)
    text = re.sub(r":math:`([^`]+)`", r"\\\\(\1\\\\)".replace("\\\\", "\\"), text)
    text = re.sub(r"^(Reference|Departures): ", r"\n**\1.** ", text, flags=re.MULTILINE)
    return linked(_contract(text))


def linked(text: str) -> str:
    """Turn ``[Wen2025]`` into a link to its entry in the references; code is left alone."""
    pieces = re.split(r"(```.*?```|`[^`]*`)", text, flags=re.DOTALL)
    return "".join(
        piece if piece.startswith("`") else KEY.sub(lambda key: rf"[\[{key[1]}\]][{key[1].lower()}]", piece)
        for piece in pieces
    )


def _display(found: re.Match[str]) -> str:
    indent, latex = found[1], " ".join(found[2].split())
    return f"\n{indent}\\[{latex}\\]\n"


def _contract(text: str) -> str:
    """Turn aligned lines ``Assumes     graph connected`` into a list; lines that follow indented belong to them."""
    entry = re.compile(rf"^({'|'.join(CONTRACT)})  +(.*)$")
    out: list[str] = []
    inside = False
    for line in text.split("\n"):
        start = entry.match(line)
        if start:
            out += [] if inside else [""]
            inside = True
            out.append(f"- **{start[1]}.**")
            line = f"    {start[2]}"
        if inside and line.startswith("    "):
            words = line.strip()  # "- " starts a point, anything else goes on with what came before
            out += ["", f"    {words}"] if words.startswith("- ") else [f"{' ' * 8}{words}"]
        else:
            inside = False
            out.append(line)
    return "\n".join(out)
