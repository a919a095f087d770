"""Hostile inputs: each gives one helpful line and exit code 2, or the right answer. No Python shows through."""

from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from conformesh import conformal_threshold
from tests.strategies import promised_rank

GOOD = "device,score\n" + "".join(f"{k},0.{(7 * k + 3 * i) % 10}\n" for k in range(4) for i in range(10))
OUTPUTS = "cat,dog\n0.25,0.75\n0.5,0.5\n"
PYTHON = re.compile(r"Traceback|PosixPath|<class|object at 0x|codec can't|NoneType|unexpected|Value error|\[Errno")


def scores_of(values: list[str]) -> str:
    return "device,score\n" + "".join(f"{i % 4},{value}\n" for i, value in enumerate(values))


def pooled(text: str) -> float:
    """The threshold that the scores of all devices together give, from the definition."""
    rows = [line.split(",") for line in text.splitlines()[1:]]
    values = np.array([float(value) for _, value in rows])
    held = [[value for name, value in rows if name == device] for device in {device for device, _ in rows}]
    rank = promised_rank(held, 0.1)
    return float(np.sort(values)[rank - 1]) if rank <= len(values) else np.inf


FILES: dict[str, str | bytes | Callable[[Path], Any]] = {
    "s.csv": GOOD,
    "p.csv": OUTPUTS,
    "edges.txt": "0 1\n1 2\n2 3\n3 0\n",
    "loop.csv": lambda path: path.symlink_to(path),
    "folder": lambda path: path.mkdir(),
    "fifo": os.mkfifo,
    "binary.txt": bytes(range(256)),
    "utf16.txt": "0 1\n1 2\n2 3\n".encode("utf-16"),
    "selfloop.txt": "0 0\n0 1\n1 2\n2 3\n",
    "wide.csv": ",".join(f"c{i}" for i in range(60_000)) + "\n" + ",".join("0" * 60_000) + "\n" * 2_000_000,
    "bomb.json": "[" * 200_000,
    "objects.json": '{"a":' * 100_000,
    "digits.json": '{"format":"conformesh-calibration/1","scores":' + "9" * 5000 + "}",
    "bomb.toml": "a = " + "[" * 100_000,
    "latin.toml": b"a = '\xe4'",
    "half.csv.gz": gzip.compress(GOOD.encode())[:-12],
    "objects.npz": lambda path: np.savez(path, device=np.array([{}]), score=np.array([1.0])),
    "shape.npy": b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000, 3), }"
    + b" " * 9,
    "empty.parquet": b"PAR1" + b"\0" * 100 + b"PAR1",
    "lists.parquet": lambda path: pl.DataFrame({"device": [["a"]], "score": [1.0]}).write_parquet(path),
    "dates.parquet": lambda path: pl.DataFrame({"device": ["a"], "score": ["2020-01-01"]}).write_parquet(path),
    "newline.csv": 'device,score\n"a\nb",1\n',
    "nul.csv": b"device,score\na,1\0\n",
    "names.csv": "device,score,score\na,1,2\n",
    "unicode.csv": "device,score\na,\u0661\u0662\n",
    "over.csv": "device,score\na,1e999\n",
    "thousands.csv": 'device,score\na,"1,234"\nb,"5,678"\n',
    "nan.csv": "cat,dog\n0.5,nan\n",
    "one.csv": "cat\n1\n",
    "index.csv": ",cat,dog\n0,0.5,0.5\n",
    "headless.csv": "0.5,0.25,0.25\n0.1,0.8,0.1\n",
    "strange.csv": "cat,dog,device\n0.5,0.5,nowhere\n",
    "label.csv": "cat,dog,label\n.5,.5,bird\n",
    "minus.csv": "cat,dog,label\n.5,.5,-1\n",
}
TAMPERED_ANSWER: dict[str, dict[str, Any]] = {
    "alpha": {"alpha": 5},
    "level": {"alpha": 0.2},
    "examples": {"examples": -1},
    "many": {"examples": 10**400},
    "certificate": {"certificate": None},
    "thresholds": {"thresholds": "x"},
    "fewer": {"thresholds": [1.0]},
    "part": {"part": ["a"]},
}
TAMPERED: dict[str, dict[str, Any]] = {
    "answers": {"answers": []},
    "device_ids": {"device_ids": ["a", "a", "b", "c"]},
    "score": {"score": {"name": "nope"}},
    "classes": {"classes": ["cat", "cat"]},
    "format": {"format": "conformesh-calibration/99"},
    "extra": {"extra": 1},
}
REFUSED = {  # words of the command -> what the line must name
    **{f"calibrate s.csv --alpha {text}": ["alpha", text[:20]] for text in ("nan", "1/0", "-0.0", "1e999", "0x1p-3")},
    f"calibrate s.csv --alpha {'9' * 5000}": ["alpha"],
    f"calibrate {'x' * 5000}": ["File name too long"],
    "calibrate loop.csv": ["loop.csv", "symbolic links"],
    "calibrate folder": ["folder", "neither"],
    "calibrate /dev/null": ["/dev/null is empty"],
    "calibrate a\0b.csv": ["cannot be the name of a file"],
    "calibrate wide.csv": ["wide.csv", "needs a column 'device'", "and 59992 more"],
    "calibrate bomb.json": ["bomb.json", "JSON"],
    "calibrate half.csv.gz": ["half.csv.gz", "gzip"],
    "calibrate objects.npz": ["objects.npz", "Python objects"],
    "calibrate shape.npy": ["shape.npy", "NPY"],
    "calibrate empty.parquet": ["empty.parquet", "Parquet"],
    "calibrate lists.parquet": ["lists.parquet", "'device' must hold names"],
    "calibrate dates.parquet": ["dates.parquet, row 0", "'2020-01-01'"],
    "calibrate newline.csv": ["newline.csv, line 3", "printable"],
    "calibrate nul.csv": ["nul.csv", "no text file", "line 2"],
    "calibrate names.csv": ["names.csv", "two columns 'score'"],
    "calibrate unicode.csv": ["unicode.csv, line 2", "must be a number"],
    "calibrate over.csv": ["over.csv, line 2", "'1e999'"],
    "calibrate thousands.csv": ["thousands.csv, line 2", "1234 or 1.234", "--decimal"],
    "calibrate s.csv --separator ab": ["separator", "'ab'"],
    "calibrate s.csv --separator semicolon": ["s.csv", "separated by ','"],
    "calibrate s.csv --decimal x": ["decimal", "'x'"],
    "calibrate s.csv --device-column score": ["'score' cannot be both"],
    f"calibrate s.csv --seed {'9' * 5000}": ["seed"],
    "calibrate s.csv --network-option rows=0": ["a side of 0"],
    "calibrate s.csv --method h-dcp --bins 99999999999": ["memory"],
    "calibrate s.csv --method h-dcp --range -inf inf": ["range", "-inf inf"],
    "calibrate s.csv --method q-dcp --kappa nan": ["kappa", "nan"],
    "calibrate s.csv --network binary.txt": ["binary.txt", "UTF-8"],
    "calibrate s.csv --network utf16.txt": ["utf16.txt", "UTF-8"],
    "calibrate s.csv --network selfloop.txt": ["selfloop.txt, line 1", "itself"],
    "calibrate s.csv --network /dev/null": ["/dev/null", "no edges"],
    "calibrate s.csv --network edges.txt --network-option rows=2": ["edges.txt is a file of edges"],
    "calibrate s.csv --engine abacus": ["unknown engine 'abacus'"],
    "calibrate s.csv --warm bomb.json": ["bomb.json", "too deep"],
    "calibrate s.csv --out folder": ["folder: cannot write the file"],
    "calibrate s.csv --out a\0b": ["--out", "null byte"],
    "predict bomb.json p.csv": ["bomb.json", "too deep"],
    "predict objects.json p.csv": ["objects.json", "too deep"],
    "predict digits.json p.csv": ["digits.json"],
    "predict folder p.csv": ["folder: Is a directory"],
    **{f"predict {name}.t p.csv": [f"{name}.t"] for name in (*TAMPERED, *TAMPERED_ANSWER)},
    "predict r.json nan.csv": ["NaN", "row 0"],
    "predict r.json one.csv": ["one.csv", "2 classes", "only 'cat'"],
    "predict r.json index.csv": ["index.csv", "column 1 has no name"],
    "predict r.json headless.csv": ["headless.csv: ", "'0.25'"],
    "predict r.json strange.csv": ["'nowhere'"],
    "predict r.json p.csv --alpha 0.5": ["alpha: 0.1", "0.5"],
    "predict r.json p.csv --keep nosuch": ["p.csv", "'nosuch'"],
    "predict r.json p.csv --format parquet": ["'parquet'"],
    "scores make label.csv --out x.csv": ["label.csv, line 2", "'bird'"],
    "scores make minus.csv --out x.csv": ["minus.csv, line 2", "-1"],
    "scores make p.csv --out x.xlsx": ["x.xlsx"],
    "scores synthetic --out y.npz --rows 99999999999999": ["memory"],
    f"plan --devices {'9' * 30}": ["devices", "at most 1e+12"],
    "plan --devices nan": ["devices", "'nan'"],
    "sweep bomb.toml": ["bomb.toml", "too deep"],
    "sweep latin.toml": ["latin.toml", "UTF-8, byte 5"],
}


@pytest.fixture
def hostile(run, tmp_path):
    """Write the files that a case names, and run it."""

    def invoke(line: str):
        words = line.split(" ")
        for name in {*words, "s.csv"} & {*FILES}:
            content = FILES[name]
            if callable(content):
                content(tmp_path / name)
            else:
                (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
        if words[0] == "predict":
            assert run("calibrate", "s.csv", "--score", "lac", "--out", "r.json").exit_code == 0
            result = json.loads((tmp_path / "r.json").read_text())
            name = words[1].removesuffix(".t")
            changed = {**result, **TAMPERED.get(name, {})}
            if name in TAMPERED_ANSWER:
                changed["answers"] = [{**result["answers"][0], **TAMPERED_ANSWER[name]}]
            if words[1].endswith(".t"):
                (tmp_path / words[1]).write_text(json.dumps(changed))
        return run(*words)

    return invoke


@pytest.mark.parametrize("line", REFUSED, ids=[line[:60].replace("\0", "NUL") for line in REFUSED])
def test_one_helpful_line_and_exit_2(hostile, line):
    answer = hostile(line)
    assert answer.exit_code == 2, answer.output[:500]
    assert answer.stdout == ""
    error, *more = answer.stderr.splitlines()
    assert error.startswith("error: ")
    assert len(error) < 1000
    assert all(hint.startswith("try: conformesh ") for hint in more)
    assert len(more) <= 1
    assert not PYTHON.search(answer.stderr), answer.stderr
    assert [word for word in REFUSED[line] if word not in error] == [], error


ANSWERED = {
    "negative zeros": scores_of(["-0.0", "0.0"] * 20),
    "denormals": scores_of([f"{i}e-324" for i in range(0, 400, 5)]),
    "infinities": scores_of(["-inf"] * 4 + [str(i) for i in range(31)] + ["inf"] * 5),
    "the largest and the smallest": scores_of(["1.7976931348623157e308", "-1.7976931348623157e308", "5e-324"] * 20),
    "all equal": scores_of(["0.1"] * 40),
    "seventeen digits": scores_of([f"0.{10**16 + i}" for i in range(40)]),
    "one device": "device,score\n" + "".join(f"only,{i}\n" for i in range(30)),
    "names with spaces and accents": "device,score\n" + "".join(f"K\u00f6ln {i % 3},{i}\n" for i in range(30)),
    "quotes inside": 'device,score\n"a ""b""",1\n' * 1 + "".join(f"c,{i}\n" for i in range(40)),
}


def threshold_in(text: str) -> float:
    """Return the one threshold of a result that was printed."""
    (answer,) = json.loads(text)["answers"]
    (threshold,) = {*map(float, answer["thresholds"])}
    return threshold


@pytest.mark.parametrize("case", ANSWERED)
def test_or_the_right_answer(run, tmp_path, case):
    (tmp_path / "s.csv").write_text(ANSWERED[case])
    answer = run("calibrate", "s.csv", "--network", "complete", "--json")
    assert answer.exit_code == 0, answer.stderr
    assert threshold_in(answer.stdout) == pooled(ANSWERED[case].replace('"a ""b"""', "a"))


@pytest.mark.parametrize("text", ["1/10", "0.10", "1e-1", ".1", "\u0660.\u0661"])
def test_an_alpha_in_other_words(run, tmp_path, text):
    (tmp_path / "s.csv").write_text(GOOD)
    assert threshold_in(run("calibrate", "s.csv", "--json", "--alpha", text).stdout) == pooled(GOOD)


def test_an_alpha_too_small_for_a_float_is_still_exact(run, tmp_path):
    (tmp_path / "s.csv").write_text(GOOD)
    answer = run("calibrate", "s.csv", "--json", "--alpha", "1e-400")
    assert threshold_in(answer.stdout) == np.inf
    assert conformal_threshold(np.arange(10.0), "1e-400") == np.inf


def test_a_pipe_is_read_and_written_as_a_pipe(run, tmp_path):
    """A result is a new file under its name; a device or a pipe of that name must stay one."""
    import threading

    (tmp_path / "s.csv").write_text(GOOD)
    os.mkfifo(tmp_path / "in")
    os.mkfifo(tmp_path / "out")
    heard: list[str] = []
    feed = threading.Thread(target=lambda: (tmp_path / "in").write_text(GOOD))
    hear = threading.Thread(target=lambda: heard.append((tmp_path / "out").read_text()))
    for thread in (feed, hear):
        thread.start()
    assert run("calibrate", "in", "--out", "out").exit_code == 0
    for thread in (feed, hear):
        thread.join(30)
    assert threshold_in(heard[0]) == pooled(GOOD)
    assert (tmp_path / "out").is_fifo()


def test_a_file_that_may_not_be_read(run, tmp_path):
    (tmp_path / "s.csv").write_text(GOOD)
    (tmp_path / "s.csv").chmod(0)
    if os.access(tmp_path / "s.csv", os.R_OK):
        pytest.skip("this user may read everything")
    answer = run("calibrate", "s.csv")
    assert (answer.exit_code, answer.stderr) == (
        2,
        "error: s.csv: cannot read the file: Permission denied; check the path\n",
    )
