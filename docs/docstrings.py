r"""What the API pages make of docstrings: a Griffe extension that turns our conventions into Markdown.

- ``.. math::`` and ``:math:`` become arithmatex, which `hooks.py` turns into MathML;
- ``[Wen2025]`` becomes a link to the references;
- the contract of a protocol (Assumes, Guarantees, Message, Departures) becomes a list;
- ``Reference:`` and ``Departures:`` start their own paragraphs.
"""

from __future__ import annotations

import inspect
import itertools
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
    text = _titled(inspect.cleandoc(text))
    text = re.sub(r"^( *)\.\. math:: ?(.*(?:\n(?:\1 +\S.*))*)", _display, text, flags=re.MULTILINE)
    text = _preformatted(text)
    text = re.sub(r":math:`([^`]+)`", r"\\\\(\1\\\\)".replace("\\\\", "\\"), text)
    text = re.sub(r"^(Reference|Departures): ", r"\n**\1.** ", text, flags=re.MULTILINE)
    return linked(_contract(text))


def linked(text: str) -> str:
    """Turn ``[Wen2025]`` into a link to its entry in the references, and keep the star of s*; code is left alone."""
    pieces = re.split(r"(```.*?```|``.+?``|`[^`]*`)", text, flags=re.DOTALL)
    return "".join(piece if piece.startswith("`") else _linked(piece) for piece in pieces)


def _linked(words: str) -> str:
    words = KEY.sub(lambda key: rf"[\[{key[1]}\]][{key[1].lower()}]", words)
    return re.sub(r"(?<![\w*\\])(s|u|z|λ|lambda)\*(?!\*)", r"\1\\*", words)  # an optimum, not the start of emphasis


def _titled(text: str) -> str:
    """Give what follows the last parameter a title of its own, or it would be read as one more parameter."""
    out: list[str] = []
    section = ""
    for line, following in itertools.zip_longest(text.split("\n"), text.split("\n")[1:], fillvalue=""):
        if re.fullmatch("-{3,}", following):
            section = line
        title = "Examples" if line.startswith(">>> ") else "Notes" if re.match("Reference|Departures", line) else ""
        loose = section in ("Parameters", "Attributes", "Returns", "Notes") or (title == "Examples" and not section)
        if title and title != section and loose:
            out += [title, "-" * len(title)]
            section = title
        out.append(line)
    return "\n".join(out)


def _preformatted(text: str) -> str:
    """Keep aligned and indented lines as they are; parameters, whose indentation means something, are left alone."""
    words, *sections = re.split(r"^(?=\S.*\n-{3,}$)", text, maxsplit=1, flags=re.MULTILINE)
    paragraphs = []
    for paragraph in re.split(r"\n{2,}", words):
        if re.match(r"\S+( \S+)* {2,}\S", paragraph) and not paragraph.startswith(CONTRACT):
            paragraphs.append(f"```text\n{paragraph}\n```")
        elif paragraph.startswith((*CONTRACT, "\\[")):
            paragraphs.append(paragraph)
        else:
            paragraphs.append(re.sub(r"^(?: {4}.*(?:\n|\Z))+", _fenced, paragraph, flags=re.MULTILINE).strip("\n"))
    return "\n\n".join(paragraphs) + "".join(f"\n\n{section}" for section in sections)


def _fenced(found: re.Match[str]) -> str:
    return f"\n```text\n{inspect.cleandoc(found[0])}\n```\n\n"


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
            out += [*([] if inside else [""]), f"- **{start[1]}.**"]
        inside = bool(start) or (inside and line.startswith("    "))
        words = start[2] if start else line.strip()
        if not inside:
            out.append(line)
        elif words.startswith("- "):
            out += ["", f"    {words}"]
        else:  # goes on with what came before
            out.append(f"{' ' * 8}{words}")
    return "\n".join(out)
