"""Training without PyTorch: what can be said without it, and how its absence is put into words."""

from __future__ import annotations

import math
import sys

import pytest
from click.testing import CliRunner

from conformesh.cli import console
from conformesh.cli.train import train
from conformesh.lab.training.recipe import _END, _START, _WARM_UP, RATE_SCHEDULES, Recipe, learning_rate
from conformesh.lab.training.resnet import ResNet14
from conformesh.lab.training.torch_extra import choose_torch_device, import_torch

WORDS = r"training needs PyTorch \(.*\): pip install 'conformesh\[torch\]'"


@pytest.fixture
def without_torch(monkeypatch):
    """As if PyTorch were not installed, whether or not it is."""
    monkeypatch.setitem(sys.modules, "torch", None)


@pytest.mark.usefixtures("without_torch")
@pytest.mark.parametrize("call", [import_torch, choose_torch_device, lambda: ResNet14(10)])
def test_its_absence_names_the_extra(call):
    with pytest.raises(ImportError, match=WORDS):
        call()


@pytest.mark.usefixtures("without_torch")
def test_the_command_says_so_in_one_line_before_it_does_anything(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(train, ["cifar100", "--data", "images"])
    assert isinstance(result.exception, ValueError)
    with pytest.raises(SystemExit) as exit, console.errors_in_one_line():
        raise result.exception
    said = capsys.readouterr().err
    assert exit.value.code == 2
    assert "pip install 'conformesh[torch]'" in said
    assert said.count("\n") == 1
    assert [*tmp_path.iterdir()] == []


def test_the_help_needs_no_torch(without_torch):
    page = CliRunner().invoke(train, ["--help"])
    assert page.exit_code == 0
    assert "--checkpoint" in page.stdout


def test_the_learning_rate_rises_and_falls():
    one_cycle = [learning_rate(Recipe(lr=0.2), step, 1000) for step in range(1000)]
    top = int(_WARM_UP * 1000)
    assert one_cycle[0] == pytest.approx(0.2 * _START)
    assert one_cycle[top] == max(one_cycle) == 0.2
    assert one_cycle[:top] == sorted(one_cycle[:top])
    assert one_cycle[top:] == sorted(one_cycle[top:], reverse=True)
    assert 0.2 * _END < one_cycle[-1] < 0.2 * 2 * _END
    cosine = [learning_rate(Recipe(lr=0.2, schedule="cosine"), step, 1000) for step in range(1000)]
    assert cosine[0] == 0.2
    assert cosine[500] == pytest.approx(0.1)
    assert cosine == sorted(cosine, reverse=True)
    assert RATE_SCHEDULES == ("one-cycle", "cosine")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"batch": 1}, "batch must be at least 2, got 1"),
        ({"lr": 0.0}, "lr must be a positive number, got 0.0"),
        ({"lr": math.nan}, "lr must be a positive number, got nan"),
        ({"width": -1.0}, "width must be a positive number, got -1.0"),
        ({"momentum": 1.0}, "momentum must be at least 0 and below 1, got 1.0"),
        ({"momentum": 0.0}, "nesterov needs momentum above 0"),
        ({"smoothing": 1.0}, "smoothing must be at least 0 and below 1, got 1.0"),
        ({"weight_decay": -1.0}, "weight_decay must be 0 or more, got -1.0"),
        ({"schedule": "linear"}, "schedule must be one-cycle or cosine, got 'linear'"),
    ],
)
def test_recipes_that_cannot_be(wrong, words):
    with pytest.raises(ValueError, match=words):
        Recipe(**wrong)
