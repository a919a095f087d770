"""Edge lists in text files: two device names a line."""

from __future__ import annotations

from pathlib import Path

from conformesh.common.names import list_names


def read_edges(path: Path, required: tuple[str, ...] | None) -> list[tuple[str, str]]:
    """Return the pairs of names; with `required` no others may appear. Errors name the file and the line."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as problem:
        raise ValueError(f"{path}: cannot read the edge list: {problem.strerror}") from problem
    except UnicodeDecodeError as problem:
        raise ValueError(f"{path}: an edge list must be UTF-8 text, byte {problem.start} is not") from problem
    known = None if required is None else {*required}
    found: list[tuple[str, str]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        fields = line.split("#", 1)[0].replace(",", " ").split()
        if not fields:
            continue
        where = f"{path}, line {number}"
        if len(fields) != 2:
            raise ValueError(f"{where}: an edge needs two device names, got {len(fields)}: {line.strip()!r}")
        if fields[0] == fields[1]:
            raise ValueError(f"{where}: device {fields[0]!r} has an edge to itself; leave self-loops out")
        for field in fields:
            if known is not None and field not in known:
                raise ValueError(f"{where}: {field!r} is none of the devices {list_names(required or ())}")
        found.append((fields[0], fields[1]))
    return found
