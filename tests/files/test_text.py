"""Tables from text: whoever wrote them, the numbers are those that were meant, or the file is refused in one line.

Every case is read twice, by the standard library and by Polars, which must agree to the last bit and the last word.
"""

from __future__ import annotations

import gzip
import io
import sys

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from conformesh import CalibrationNote
from conformesh.files import text
from conformesh.files.score_files import read_scores
from conformesh.files.tables import FileLayout, read_table

PLAIN = "device,score\na,0.5\nb,1.25\n"


@pytest.fixture(params=["small", "large"])
def both(request, monkeypatch):
    """Read with the standard library, or with Polars as if the file were large."""
    monkeypatch.setattr(text, "SMALL_FILE", 0 if request.param == "large" else text.SMALL_FILE)


def held(data: bytes | str, **layout) -> dict[str, list[float]]:
    found = read_scores("-", io.BytesIO(data.encode() if isinstance(data, str) else data), layout=FileLayout(**layout))
    return {device: scores.tolist() for device, scores in zip(found.devices, found.scores, strict=True)}


EXPECTED = {"a": [0.5], "b": [1.25]}
SAME = {
    "plain": PLAIN,
    "semicolons": PLAIN.replace(",", ";"),
    "tabs": PLAIN.replace(",", "\t"),
    "pipes": PLAIN.replace(",", "|"),
    "decimal commas": "device;score\na;0,5\nb;1,25\n",
    "decimal commas and tabs": "device\tscore\na\t0,5\nb\t1,25\n",
    "quoted decimal commas": 'device,score\na,"0,5"\nb,"1,25"\n',
    "a line that declares": "sep=;\ndevice;score\na;0,5\nb;1,25\n",
    "carriage returns": PLAIN.replace("\n", "\r\n"),
    "carriage returns alone": PLAIN.replace("\n", "\r"),
    "no newline at the end": PLAIN.rstrip(),
    "blank lines": PLAIN.replace("\n", "\n\n"),
    "empty rows": PLAIN + ",\n,\n",
    "separators at the ends": "device,score,,\na,0.5,,\nb,1.25,,\n",
    "quotes": '"device","score"\n"a","0.5"\n"b","1.25"\n',
    "spaces": "device , score\n a,0.5 \nb , 1.25\n",
    "utf-8 with its mark": b"\xef\xbb\xbf" + PLAIN.encode(),
    "utf-16": PLAIN.encode("utf-16"),
    "utf-16 the other way": b"\xfe\xff" + PLAIN.encode("utf-16-be"),
    "utf-16 without a mark": PLAIN.encode("utf-16-le"),
    "utf-32": PLAIN.encode("utf-32"),
    "gzip": gzip.compress(PLAIN.encode()),
    "capital letters": PLAIN.replace("device,score", "Device,SCORE"),
    "names that mean the same": PLAIN.replace("device,score", "client,nonconformity"),
    "another column": "device,score,note\na,0.5,x|y\nb,1.25,\n",
    "a separator inside a name": "device,score,a;b\na,0.5,1\nb,1.25,2\n",
}


@pytest.mark.usefixtures("both")
@pytest.mark.parametrize("case", SAME)
def test_the_same_table_in_other_dress(case):
    assert held(SAME[case]) == EXPECTED


@pytest.mark.usefixtures("both")
def test_what_is_said_is_done():
    assert held("site!loss!score\na!0.5!7\nb!1.25!8\n", separator="!", device="site", score="loss") == EXPECTED
    assert held("device;score\na;1,234\n", decimal=",") == {"a": [1.234]}
    assert held("device;score\na;1.234\n", decimal=".") == {"a": [1.234]}
    assert held("device score\na 1\n", separator="space") == {"a": [1.0]}
    assert held("device,x;score\na,1;2\n", separator="semicolon", device="device,x") == {"a,1": [2.0]}


REFUSED = {
    "which separator": ("device;x,score\na;1,5\n", ["cells may be separated by", "--separator"]),
    "thousands or decimals": ("device;score\na;1,234\nb;2,345\n", ["line 2", "may mean 1234 or 1.234", "--decimal"]),
    "thousands with points": ("device;score\na;1.234\nb;2.345\n", ["line 2", "may mean 1234 or 1.234", "--decimal"]),
    "thousands for certain": ('device,score\na,"1,234,567"\n', ["line 2", "'1,234,567'", "leave out thousands"]),
    "both signs in a cell": ("device;score\na;1.234,5\n", ["line 2", "'1.234,5'", "leave out thousands"]),
    "both signs in a column": ("device;score\na;0.5\nb;0,5\n", ["line 3", "'0,5' beside '0.5'"]),
    "an underscore": ("device,score\na,1_000\n", ["line 2", "'1_000'"]),
    "other digits": ("device,score\na,\uff11\uff12\n", ["line 2", "'\uff11\uff12'"]),
    "a hexadecimal": ("device,score\na,0x10\n", ["line 2", "'0x10'"]),
    "too large": ("device,score\na,1\nb,-1e400\n", ["line 3", "'-1e400'", "beyond the largest number"]),
    "a long row": ("device,score\na,1\nb,1,2\n", ["line 3 has 3 fields, the header 2"]),
    "a short row": ("device,score,weight\na,1,2\n0.5,9\n", ["line 3 has 2 fields, the header 3"]),
    "an open quote": ('device,score\na,"1\nb,2\n', ["a quote is opened and not closed"]),
    "a half quote": ('device,score\na,"1"2\n', ["line 2", "quote"]),
    "two of a name": ("device,score,score\na,1,2\n", ["two columns 'score'"]),
    "two of a name but for spaces": ("device,score, device\na,1,b\n", ["two columns 'device'"]),
    "two that may be meant": ("site,node,score\na,b,1\n", ["'site', 'node'", "--device-column"]),
    "no heading": ("a,0.5\nb,0.25\n", ["the first line must name the columns"]),
    "latin-1": ("device,score\nK\xf6ln,1\n".encode("latin-1"), ["not in UTF-8", "0xf6 in line 2", "iconv"]),
    "a zero byte": (b"device,score\na,1\0\n", ["is no text file", "line 2"]),
    "bytes": (bytes(range(1, 256)) * 4, ["is no text file"]),
    "half of utf-16": (b"\xff\xfed\x00e", ["UTF-16"]),
    "half of gzip": (gzip.compress(PLAIN.encode())[:20], ["gzip"]),
    "a workbook": (b"PK\x03\x04 and more", ["Excel"]),
    "a database": (b"SQLite format 3\0", ["SQLite"]),
    "JSON": (b'{"device": ["a"]}', ["JSON"]),
    "a newline in a name": ('device,score\n"a\nb",1\n', ["'a\\nb'", "printable"]),
    "a separator of two": (PLAIN, ["separator must be one character"]),
}


@pytest.mark.usefixtures("both")
@pytest.mark.parametrize("case", REFUSED)
def test_what_could_be_wrong_is_refused(case):
    data, words = REFUSED[case]
    with pytest.raises(ValueError) as caught:
        held(data, separator=";;" if case == "a separator of two" else None)
    said = str(caught.value)
    assert [word for word in words if word not in said] == [], said
    assert "standard input" in said or "separator" in said


@pytest.mark.usefixtures("both")
def test_columns_agree_on_one_decimal_sign():
    """1,234 alone may be a thousand and more; beside 0,5 it cannot be, and beside 0.5 it must not."""
    one = read_table("-", "classes", io.BytesIO(b"x;y\n1,234;0,5\n"))
    assert one.matrix(["x", "y"]).tolist() == [[1.234, 0.5]]
    other = read_table("-", "classes", io.BytesIO(b"x;y\n1,234;0.5\n"))
    with pytest.raises(ValueError, match=r"x must be a number, got '1,234' beside '0\.5'"):
        other.matrix(["x", "y"])


CELLS = st.one_of(
    st.floats().map(repr),
    st.integers(-(10**400), 10**400).map(str),
    st.text("0123456789.,eE+-_ infaINFx\u0661", max_size=6),
)


@given(st.lists(CELLS, min_size=1, max_size=4), st.sampled_from(",;\t"))
@example(["1_0"], ",")
@example(["\u0661"], ",")
@example(["1e400"], ";")
def test_both_readers_say_the_same_of_any_cell(cells, separator):
    quoted = ['"' + cell + '"' for cell in cells]
    data = f"device{separator}score\n" + "".join(f"a{separator}{cell}\n" for cell in quoted)
    answers = []
    for small in (0, sys.maxsize):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(text, "SMALL_FILE", small)
            try:
                answers.append(np.array(held(data)["a"]).tobytes())
            except (ValueError, CalibrationNote) as problem:
                answers.append(str(problem))
    assert answers[0] == answers[1]


def test_a_small_file_needs_no_polars(tmp_path):
    """The time of `calibrate` on a thousand scores is mostly that of what it loads."""
    import subprocess

    (tmp_path / "s.csv").write_text("device,score\n" + "a,0.5\n" * 1000)
    code = "import sys; from conformesh.files.score_files import read_scores; read_scores('s.csv'); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "conformesh.files.text" in loaded.stdout.split()
    assert "polars" not in loaded.stdout.split()
