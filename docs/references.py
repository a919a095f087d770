"""Read the small part of BibTeX that `references.bib` uses, and write it as a page."""

from __future__ import annotations

import re
import unicodedata

ENTRY = re.compile(r"@(\w+)\{(\w+),\n(.*?)\n\}", re.DOTALL)
FIELD = re.compile(r"^  (\w+) += \{(.*)\},$", re.MULTILINE)


def entries(bibtex: str) -> dict[str, dict[str, str]]:
    """Return the fields of every entry by its key, in the order of the file."""
    return {key: {"type": kind, **dict(FIELD.findall(body))} for kind, key, body in ENTRY.findall(bibtex)}


def page_of(found: dict[str, dict[str, str]]) -> str:
    """Return one heading for each entry, by key, so that ``[Key]`` can link to it."""
    return "\n\n".join(f"### {key}\n\n{_citation(found[key])}" for key in sorted(found))


def _citation(entry: dict[str, str]) -> str:
    people = [" ".join(reversed(name.split(", "))) for name in entry["author"].split(" and ")]
    title = entry["title"].replace("`", "‘").replace("'", "’")
    where = entry.get("booktitle") or entry.get("journal") or entry.get("publisher", "")
    volume = entry.get("volume", "") + (f"({entry['number']})" if "number" in entry else "")
    series = f"{entry['series']} " if "series" in entry else ""
    place = " ".join(filter(None, [f"*{where}*".replace(r"\&", "&"), series.strip(), volume]))
    pages = f", {entry['pages'].replace('--', '–')}" if "pages" in entry else ""
    address = f" <{entry['url']}>" if "url" in entry else ""
    note = f"\n\n{entry['note']}." if "note" in entry else ""
    return plain(f"{', '.join(people)}. **{title}**. {place}{pages}, {entry['year']}.{address}{note}")


def plain(text: str) -> str:
    r"""Return text without BibTeX's accents and braces.

    >>> plain(r"L{\'a}szl{\'o} Barab{\'a}si and {AI}")
    'László Barabási and AI'
    """
    accents = {"'": "\u0301", "`": "\u0300", '"': "\u0308", "^": "\u0302", "~": "\u0303"}
    text = re.sub(r"\{\\(['`\"^~])(\w)\}", lambda found: found[2] + accents[found[1]], text)
    return unicodedata.normalize("NFC", re.sub(r"[{}]", "", text))
