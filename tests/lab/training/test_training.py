"""The shared model: its shape, that it learns, and that an interruption changes nothing."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch", reason="training needs PyTorch: pip install 'conformesh[torch]'")

from conformesh.cli import console  # noqa: E402
from conformesh.cli.train import train  # noqa: E402
from conformesh.files.output_files import read_outputs  # noqa: E402
from conformesh.lab.datasets.datasets import DATASETS  # noqa: E402
from conformesh.lab.datasets.downloads import PublishedFile  # noqa: E402
from conformesh.lab.datasets.images import ImageData  # noqa: E402
from conformesh.lab.training import train as training  # noqa: E402
from conformesh.lab.training.augment import TrainingBatches  # noqa: E402
from conformesh.lab.training.recipe import Recipe  # noqa: E402
from conformesh.lab.training.resnet import ResNet14  # noqa: E402
from conformesh.lab.training.torch_extra import choose_torch_device  # noqa: E402
from conformesh.lab.training.train import TrainingObserver, compute_logits, train_model  # noqa: E402
from tests.lab.image_files import images_and_labels, packed, write_cifar100, write_medmnist  # noqa: E402

SMALL = Recipe(epochs=2, batch=16, width=0.25, crop=1, seed=3)


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def data():
    """Four colours with noise."""
    train_part, held = images_and_labels(100, 4, 1, side=8), images_and_labels(40, 4, 2, side=8)
    return ImageData(*train_part, *held, 4, "colours")


class Stop(TrainingObserver):
    """Interrupt after an epoch."""

    def __init__(self, after):
        super().__init__(epoch=lambda epoch: self.check(epoch, after))

    @staticmethod
    def check(epoch, after):
        if epoch.number == after:
            raise KeyboardInterrupt


def assert_same_bits(one, other):
    states = one.model.layers.state_dict(), other.model.layers.state_dict()
    assert states[0].keys() == states[1].keys()
    for name, values in states[0].items():
        assert torch.equal(values, states[1][name]), name
    assert np.array_equal(one.logits, other.logits)


# --- the model --------------------------------------------------------------------------------------------------------


def test_fourteen_layers_have_weights():
    layers = ResNet14(100).layers
    weighted = [one for one in layers.modules() if isinstance(one, torch.nn.Conv2d | torch.nn.Linear)]
    assert len(weighted) == 14
    assert [one.out_channels for one in weighted[:-1]] == [16] * 5 + [32] * 4 + [64] * 4


@pytest.mark.parametrize(("classes", "channels", "width"), [(100, 3, 1.0), (9, 3, 1.0), (10, 1, 2.0)])
def test_number_of_parameters(classes, channels, width):
    """3x3 convolutions without bias, two numbers for each normalised channel, a linear layer with bias."""
    a, b, c = (round(width * many) for many in (16, 32, 64))
    convolutions = 9 * (channels * a + 4 * a * a + a * b + 3 * b * b + b * c + 3 * c * c)
    expected = convolutions + 2 * (5 * a + 4 * b + 4 * c) + (c + 1) * classes
    assert ResNet14(classes, channels, width).parameters == expected
    if (classes, width) == (100, 1.0):
        assert expected == 178_356


def test_stages_halve_the_image_and_the_shortcut_adds_zeros():
    model = ResNet14(5, channels=1, width=0.25)
    shapes = []
    for block in model.layers["blocks"]:
        block.register_forward_hook(lambda _, given, result: shapes.append(tuple(result.shape[1:])))
    assert model(torch.zeros((2, 29, 28, 1), dtype=torch.uint8)).shape == (2, 5)
    assert shapes == [(4, 29, 28)] * 2 + [(8, 15, 14)] * 2 + [(16, 8, 7)] * 2


def test_first_weights_follow_the_seed_and_leave_others_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    models = [ResNet14(4, width=0.25, seed=seed) for seed in (1, 1, 2)]
    assert torch.equal(torch.rand(3), expected)
    heads = [model.layers["head"].weight for model in models]
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])


# --- batches ----------------------------------------------------------------------------------------------------------


def test_every_image_of_a_batch_is_a_window_of_its_own_image(data):
    """Against a slow version: some window of the padded image, perhaps mirrored, is what was handed out."""
    recipe = replace(SMALL, crop=2)
    batches = TrainingBatches(data.train_images[:20], np.arange(20), recipe, "cpu")
    padded = np.pad(data.train_images[:20], ((0, 0), (2, 2), (2, 2), (0, 0)), mode="reflect")
    seen = []
    for images, which in batches.epoch(0):
        for image, index in zip(images.numpy(), which.tolist(), strict=True):
            windows = [padded[index, y : y + 8, x : x + 8] for y in range(5) for x in range(5)]
            assert any(np.array_equal(image, one) or np.array_equal(image, one[:, ::-1]) for one in windows)
            seen.append(index)
    assert len(seen) == len({*seen}) == 16  # four are too few for a second batch


def test_without_shifts_and_mirrors_images_stay_as_they_are(data):
    recipe = replace(SMALL, crop=0, flip=False)
    batches = TrainingBatches(data.train_images, np.arange(100), recipe, "cpu")
    for images, which in batches.epoch(1):
        assert np.array_equal(images.numpy(), data.train_images[which.numpy()])


def test_an_epoch_is_drawn_from_seed_and_number(data):
    def order(seed, number):
        batches = TrainingBatches(data.train_images, np.arange(100), replace(SMALL, seed=seed), "cpu")
        return np.concatenate([which.numpy() for _, which in batches.epoch(number)]).tolist()

    assert order(0, 1) == order(0, 1)
    assert order(0, 1) != order(0, 2)
    assert order(0, 1) != order(1, 1)


# --- training ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", ["one-cycle", "cosine"])
def test_it_learns_what_can_be_learnt(data, schedule):
    told = []
    observer = TrainingObserver(
        begin=lambda total, done: told.append((total, done)), step=lambda: told.append("step"), epoch=told.append
    )
    recipe = replace(SMALL, epochs=15, schedule=schedule, smoothing=0.05)
    trained = train_model(data, recipe, device="cpu", observer=observer)
    assert trained.accuracy > 0.9
    assert trained.logits.shape == (40, 4)
    assert trained.logits.dtype == np.float32
    assert trained.history[-1].loss < trained.history[0].loss
    assert told[0] == (90, 0)
    assert told.count("step") == 90
    assert told[-1] == trained.history[-1]
    assert np.array_equal(compute_logits(trained.model, data.held_images), trained.logits)


def test_an_interruption_changes_no_bit(data, tmp_path):
    straight = train_model(data, SMALL, device="cpu")
    file = tmp_path / "c"
    with pytest.raises(KeyboardInterrupt):
        train_model(data, SMALL, device="cpu", checkpoint=file, observer=Stop(after=1))
    torch.rand(7)  # other random numbers are drawn in between
    resumed = train_model(data, SMALL, device="cpu", checkpoint=file)
    assert (straight.resumed, resumed.resumed) == (0, 1)
    assert_same_bits(straight, resumed)
    assert [epoch.loss for epoch in straight.history] == [epoch.loss for epoch in resumed.history]
    finished = train_model(data, SMALL, device="cpu", checkpoint=file)
    assert finished.resumed == 2
    assert_same_bits(straight, finished)
    anew = train_model(data, SMALL, device="cpu", checkpoint=file, resume=False)
    assert anew.resumed == 0
    assert_same_bits(straight, anew)
    assert [item.name for item in tmp_path.iterdir()] == ["c"]


def test_without_its_momentum_a_resumed_run_would_differ(data, tmp_path, monkeypatch):
    """The optimizer's state is load-bearing: without it the test above fails."""
    straight = train_model(data, SMALL, device="cpu")
    with pytest.raises(KeyboardInterrupt):
        train_model(data, SMALL, device="cpu", checkpoint=tmp_path / "c", observer=Stop(after=1))
    monkeypatch.setattr(torch.optim.SGD, "load_state_dict", lambda *_: None)
    resumed = train_model(data, SMALL, device="cpu", checkpoint=tmp_path / "c")
    assert not np.array_equal(straight.logits, resumed.logits)


def test_half_precision_learns_and_resumes(data, tmp_path, monkeypatch):
    """What a graphics card does, done on the processor: scaled gradients whose scale is kept in the checkpoint."""
    half = (lambda: torch.autocast("cpu", dtype=torch.bfloat16), lambda: torch.amp.GradScaler("cpu"))
    monkeypatch.setattr(training, "mixed_precision", lambda device: (half[0], half[1]()))
    straight = train_model(data, replace(SMALL, epochs=4), device="cpu")
    assert straight.history[-1].loss < straight.history[0].loss / 1.5
    with pytest.raises(KeyboardInterrupt):
        train_model(data, replace(SMALL, epochs=4), device="cpu", checkpoint=tmp_path / "c", observer=Stop(after=2))
    assert torch.load(tmp_path / "c", weights_only=True)["scaler"]["scale"] > 1
    assert_same_bits(straight, train_model(data, replace(SMALL, epochs=4), device="cpu", checkpoint=tmp_path / "c"))


def test_images_that_may_only_be_read(data):
    for values in vars(data).values():
        if isinstance(values, np.ndarray):
            values.flags.writeable = False
    assert train_model(data, replace(SMALL, epochs=1, crop=0), device="cpu").logits.shape == (40, 4)


def test_mean_and_spread_of_the_training_images(data):
    model = train_model(data, replace(SMALL, epochs=1), device="cpu").model
    flat = data.train_images.reshape(-1, 3).astype(np.float64)
    assert model.layers.mean.numpy() == pytest.approx(flat.mean(axis=0))
    assert model.layers.std.numpy() == pytest.approx(flat.std(axis=0))
    black = replace(data, train_images=data.train_images * np.array([1, 0, 1], np.uint8))
    assert train_model(black, replace(SMALL, epochs=1), device="cpu").model.layers.std[1] == 1


def test_too_fast_a_descent_and_too_few_images_are_said(data):
    with pytest.raises(ValueError, match=r"training diverged in epoch \d: the loss is nan; try a smaller lr"):
        train_model(data, replace(SMALL, lr=1e30), device="cpu")
    one = replace(data, train_images=data.train_images[:1], train_labels=data.train_labels[:1])
    with pytest.raises(ValueError, match="at least 2 training images are needed, got 1"):
        train_model(one, SMALL, device="cpu")


def test_devices(monkeypatch):
    with pytest.raises(ValueError, match="device must be auto, cpu, cuda or mps, got 'tpu'"):
        choose_torch_device("tpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert choose_torch_device() == "cpu"
    with pytest.raises(ValueError, match=r"device 'cuda' is not here, PyTorch .* found: cpu"):
        choose_torch_device("cuda")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert choose_torch_device() == "mps"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_torch_device() == "cuda"
    assert choose_torch_device("cpu") == "cpu"


# --- checkpoints ------------------------------------------------------------------------------------------------------


class Harm:
    """What an ordinary pickle could do while it is loaded."""

    def __reduce__(self):
        return (print, ("harm",))


def test_files_that_are_no_checkpoint(data, tmp_path, capsys):
    file, once = tmp_path / "c", replace(SMALL, epochs=1)
    train_model(data, once, device="cpu", checkpoint=file)
    whole = file.read_bytes()
    damaged = bytearray(whole)
    damaged[len(whole) // 3 : len(whole) // 2] = bytes(len(whole) // 2 - len(whole) // 3)
    for content in (whole[:-100], whole[: len(whole) // 2], bytes(damaged), b"", b"no checkpoint"):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=r"c: cannot be read as a checkpoint: .*--no-resume"):
            train_model(data, once, device="cpu", checkpoint=file)
    for content in ({"a": 1}, [1], {"kind": "conformesh checkpoint 1", "a": 1}, {"harm": Harm()}):
        torch.save(content, file)
        with pytest.raises(ValueError, match="c: cannot be read as a checkpoint"):
            train_model(data, once, device="cpu", checkpoint=file)
    assert "harm" not in capsys.readouterr().out
    train_model(data, once, device="cpu", checkpoint=file, resume=False)
    assert train_model(data, once, device="cpu", checkpoint=file).resumed == 1


def test_a_checkpoint_of_another_run_is_refused(data, tmp_path):
    file = tmp_path / "c"
    train_model(data, SMALL, device="cpu", checkpoint=file)
    for change, words in (
        ({"lr": 0.2}, "is a checkpoint of a run with lr 0.1, now it is 0.2"),
        ({"seed": 4}, "with seed 3, now it is 4"),
        ({"epochs": 3}, "with epochs 2, now it is 3"),
    ):
        with pytest.raises(ValueError, match=words):
            train_model(data, replace(SMALL, **change), device="cpu", checkpoint=file)
    brighter = replace(data, train_images=data.train_images | 1)
    with pytest.raises(ValueError, match=r"with training images 100x8x8x3 \(CRC .*\), now it is 100x8x8x3 \(CRC"):
        train_model(brighter, SMALL, device="cpu", checkpoint=file)


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    small = ("--epochs", "2", "--batch", "20", "--width", "0.25", "--device", "cpu", "--threads", "1")
    return lambda *words: CliRunner().invoke(train, [*map(str, words), *small])


def test_from_cifar_files_to_outputs_that_others_read(run, tmp_path):
    parts = write_cifar100(tmp_path)
    result = run("cifar100", "--data", tmp_path, "--no-download", "--out", "made/outputs.npz", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["train_images"] == 60
    assert found["classes"] == 100
    assert found["out"] == "made/outputs.npz"
    assert found["recipe"]["epochs"] == 2
    assert result.stderr.splitlines()[0].startswith("epoch 1 of 2: loss ")
    with np.load(tmp_path / "made" / "outputs.npz") as saved:
        assert saved.files == ["logits", "labels"]
        assert saved["logits"].dtype == np.float32
        assert saved["labels"].dtype == np.int64
        assert np.array_equal(saved["labels"], parts["test"][1])
        assert (saved["logits"].argmax(axis=1) == saved["labels"]).mean() == found["accuracy"]
    assert read_outputs(str(tmp_path / "made" / "outputs.npz"), logits=True).values.shape == (20, 100)
    assert sorted(item.name for item in (tmp_path / "made").iterdir()) == ["outputs.checkpoint", "outputs.npz"]


def test_images_that_are_not_there_are_fetched(run, tmp_path, monkeypatch):
    write_cifar100(tmp_path)
    archive = packed(tmp_path / "cifar-100-python", tmp_path / "x.tar.gz")
    source = PublishedFile(
        "c.tar.gz", archive.as_uri(), hashlib.md5(archive.read_bytes(), usedforsecurity=False).hexdigest()
    )
    monkeypatch.setitem(DATASETS, "cifar100", replace(DATASETS["cifar100"], source=source))
    result = run("cifar100", "--data", "new", "--json")
    assert result.exit_code == 0, result.output
    assert result.stderr.startswith(f"note: downloading {source.url}\nepoch 1 of 2: ")
    assert [item.name for item in (tmp_path / "new").iterdir()] == ["c.tar.gz"]
    assert "downloading" not in run("cifar100", "--data", "new", "--json").stderr


def test_an_interrupted_command_says_what_is_saved_and_goes_on(run, tmp_path, monkeypatch):
    write_medmnist(tmp_path / "derma.npz")
    words = ("derma.npz", "--held", "val+test", "--checkpoint", "c.pt")
    with monkeypatch.context() as patch:
        patch.setattr(console, "print_status", lambda text: (_ for _ in ()).throw(KeyboardInterrupt))
        result = run(*words)
    assert result.exit_code != 0
    assert "note: epoch 1 of 2 is saved in c.pt; the same command goes on from there" in result.stderr
    assert not (tmp_path / "outputs.npz").exists()
    again = run(*words)
    assert again.exit_code == 0, again.output
    assert "note: going on after epoch 1 of 2, from c.pt" in again.stderr
    lines = dict(line.split(": ", 1) for line in again.stdout.splitlines())
    assert lines.keys() == {"accuracy", "training", "model", "outputs", "checkpoint", "seconds"}
    assert lines["accuracy"].endswith("on 20 held-out images")
    assert "note: going on after epoch 2 of 2" in run(*words).stderr
    assert "going on" not in run(*words, "--no-resume").stderr


def test_mistakes_are_named_before_anything_is_loaded(run):
    for words, message in (
        (("cifar100", "--out", "outputs.csv"), "outputs.csv: the name must end in .npz"),
        (("cifar100", "--lr", "fast"), "lr must be a number, got 'fast'"),
        (("cifar100", "--seed", "-1"), "seed must be at least 0, got -1"),
        (("cifar-100", "--no-download"), "unknown data set 'cifar-100', did you mean 'cifar100'"),
    ):
        result = run(*words)
        assert isinstance(result.exception, ValueError), words
        assert message in str(result.exception)
