"""Scores on disk and a way to run the command line, in process and as a real command."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import conformesh
from conformesh.cli import app

Run = Callable[..., Result]
Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run the command line in this process, in an empty directory."""
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()
    return lambda *words, **extra: runner.invoke(app, [str(word) for word in words], **extra)


@pytest.fixture
def environment() -> dict[str, str]:
    """Let a command of its own find the package that is being tested."""
    return {**os.environ, "PYTHONPATH": str(Path(conformesh.__file__).parents[1])}


@pytest.fixture
def command(tmp_path: Path, environment: dict[str, str]) -> Command:
    """Run the command line as a command of its own."""

    def start(*words: object, **extra: Any) -> subprocess.CompletedProcess[str]:
        words = (sys.executable, "-m", "conformesh.cli", *map(str, words))
        return subprocess.run(
            words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False, **extra
        )

    return start


@pytest.fixture
def held() -> dict[str, np.ndarray]:
    """Scores of twelve devices, unequally many and in no order."""
    rng = np.random.default_rng(7)
    return {f"d{k}": rng.random(rng.integers(8, 30)) for k in rng.permutation(12)}


@pytest.fixture
def table(held: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The same scores as two columns, rows shuffled."""
    device = np.concatenate([np.full(len(values), name) for name, values in held.items()])
    score = np.concatenate([*held.values()])
    order = np.random.default_rng(8).permutation(len(score))
    return device[order], score[order]


@pytest.fixture
def scores(table: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> Path:
    path = tmp_path / "scores.csv"
    rows = "".join(f"{device},{score!r}\n" for device, score in zip(*map(np.ndarray.tolist, table), strict=True))
    path.write_text("device,score\n" + rows)
    return path


@pytest.fixture
def csv(tmp_path: Path) -> Callable[[str], Path]:
    """Write a small CSV file from its text."""

    def write(text: str, name: str = "small.csv") -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write
