"""Train the shared model, and compute its outputs for the held-out images.

The held-out images are not looked at before training has ended: nothing about the model was chosen by them, as the
guarantees of calibration require.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.common.array_types import Ints
from conformesh.lab.datasets.images import ImageData, Pixels
from conformesh.lab.training.augment import TrainingBatches
from conformesh.lab.training.checkpoint import TrainingCheckpoint
from conformesh.lab.training.recipe import Recipe, learning_rate
from conformesh.lab.training.resnet import ResNet14
from conformesh.lab.training.torch_extra import choose_torch_device, import_torch

_HELD_OUT_BATCH = 500  # held-out images computed at a time, which bounds memory; results do not depend on it


@dataclass(frozen=True)
class Epoch:
    """How one pass over the training images went: mean loss and share of right answers while it was under way."""

    number: int
    loss: float
    accuracy: float
    seconds: float


@dataclass(frozen=True)
class TrainingObserver:
    """Callbacks that training calls.

    Attributes
    ----------
    begin
        Steps in all, and steps that a checkpoint has done already.
    step
        Called after every step.
    epoch
        Called after every epoch, when its checkpoint is saved.
    """

    begin: Callable[[int, int], None] = lambda total, done: None
    step: Callable[[], None] = lambda: None
    epoch: Callable[[Epoch], None] = lambda epoch: None


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """A trained model and its outputs.

    Attributes
    ----------
    model
        From images to logits.
    logits
        Of the held-out images, shape (images, classes).
    labels
        The true classes of these images.
    history
        How each epoch went.
    device
        Where it was trained.
    resumed
        Epochs that came from a checkpoint.
    """

    model: ResNet14
    logits: NDArray[np.float32]
    labels: Ints
    history: tuple[Epoch, ...]
    device: str
    resumed: int

    @property
    def accuracy(self) -> float:
        """How often the largest logit of a held-out image is that of its class."""
        return float((self.logits.argmax(axis=1) == self.labels).mean())


def train_model(
    data: ImageData,
    recipe: Recipe | None = None,
    *,
    device: str = "auto",
    checkpoint: Path | None = None,
    resume: bool = True,
    observer: TrainingObserver | None = None,
) -> TrainedModel:
    """Train a `ResNet14` on the training images; return it with its logits for the held-out ones.

    On a CPU one recipe gives one model, to the last bit, whether or not it was interrupted (for one version of PyTorch
    and one number of threads).

    Parameters
    ----------
    checkpoint
        A file that is written after every epoch.
    resume
        Whether to continue from that file if it exists; it must come from the same recipe and data.
    """
    recipe, observer = recipe or Recipe(), observer or TrainingObserver()
    run = _Run(data, recipe, choose_torch_device(device))
    if checkpoint is not None and resume and checkpoint.exists():
        run.restore(checkpoint)
    resumed = len(run.history)
    observer.begin(recipe.epochs * run.batches.steps, resumed * run.batches.steps)
    while len(run.history) < recipe.epochs:
        epoch = run.epoch(observer.step)
        if checkpoint is not None:
            run.save(checkpoint)
        observer.epoch(epoch)
    logits = compute_logits(run.model, data.held_images, run.device)
    return TrainedModel(run.model, logits, data.held_labels, tuple(run.history), run.device, resumed)


def compute_logits(model: ResNet14, images: Pixels, device: str = "cpu") -> NDArray[np.float32]:
    """Return the logits of images, shape (images, classes)."""
    torch = import_torch()
    model.layers.eval()
    found = []
    with torch.inference_mode():
        for start in range(0, len(images), _HELD_OUT_BATCH):
            batch = torch.from_numpy(images[start : start + _HELD_OUT_BATCH].copy()).to(device)
            found.append(model(batch).float().cpu().numpy())
    return np.concatenate(found)


@dataclass
class _Run:
    """All that changes while a model is trained."""

    data: ImageData
    recipe: Recipe
    device: str
    history: list[Epoch] = field(default_factory=list)

    def __post_init__(self) -> None:
        torch, data, recipe = import_torch(), self.data, self.recipe
        if len(data.train_images) < 2:
            raise ValueError(f"{data.name}: at least 2 training images are needed, got {len(data.train_images)}")
        self.batches = TrainingBatches(data.train_images, data.train_labels, recipe, self.device)
        self.model = ResNet14(data.classes, data.train_images.shape[3], recipe.width, recipe.seed)
        mean, std = _mean_and_std(data.train_images)
        self.model.layers.mean.copy_(torch.from_numpy(mean))
        self.model.layers.std.copy_(torch.from_numpy(std))
        self.model.layers.to(self.device, memory_format=torch.channels_last)  # as the images are stored
        self.optimizer = torch.optim.SGD(
            self.model.layers.parameters(),
            lr=recipe.lr,
            momentum=recipe.momentum,
            nesterov=recipe.nesterov,
            weight_decay=recipe.weight_decay,
        )
        self.lower_precision, self.scaler = mixed_precision(self.device)

    def epoch(self, stepped: Callable[[], None]) -> Epoch:
        """Pass over the training images once."""
        torch, number, start = import_torch(), len(self.history), time.perf_counter()
        steps, seen = self.batches.steps, self.batches.steps * self.batches.size
        loss_sum = torch.zeros((), device=self.device)
        right = torch.zeros((), device=self.device, dtype=torch.int64)
        self.model.layers.train()
        for step, (images, labels) in enumerate(self.batches.epoch(number)):
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate(self.recipe, number * steps + step, self.recipe.epochs * steps)
            with self.lower_precision():
                logits = self.model(images)
            loss = torch.nn.functional.cross_entropy(logits.float(), labels, label_smoothing=self.recipe.smoothing)
            self.optimizer.zero_grad(set_to_none=True)
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            loss_sum += loss.detach()
            right += (logits.argmax(dim=1) == labels).sum()
            stepped()
        loss_mean = float(loss_sum) / steps
        if not np.isfinite(loss_mean):
            raise ValueError(f"training diverged in epoch {number + 1}: the loss is {loss_mean}; try a smaller lr")
        self.history.append(Epoch(number + 1, loss_mean, int(right) / seen, time.perf_counter() - start))
        return self.history[-1]

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What two runs must have in common for one to go on where the other stopped."""
        data = self.data
        pixels = zlib.crc32(data.train_labels.tobytes(), zlib.crc32(np.ascontiguousarray(data.train_images).data))
        shape = "x".join(map(str, data.train_images.shape))
        return {**asdict(self.recipe), "classes": data.classes, "training images": f"{shape} (CRC {pixels:08x})"}

    def save(self, path: Path) -> None:
        states = (self.model.layers.state_dict(), self.optimizer.state_dict(), self.scaler.state_dict())
        TrainingCheckpoint(self.settings, [asdict(epoch) for epoch in self.history], *states).save(path)

    def restore(self, path: Path) -> None:
        found = TrainingCheckpoint.load(path, self.device, self.settings)
        self.history = [Epoch(**epoch) for epoch in found.history]
        self.model.layers.load_state_dict(found.layers)
        self.optimizer.load_state_dict(found.optimizer)
        if found.scaler:  # empty if it comes from a device without half precision
            self.scaler.load_state_dict(found.scaler)


def mixed_precision(device: str) -> tuple[Callable[[], AbstractContextManager[None]], Any]:
    """Return the context in which a model computes in half precision, and the scaler of its gradients.

    That pays on a graphics card of NVIDIA; elsewhere both do nothing.
    """
    torch = import_torch()
    on = device == "cuda"
    kind = torch.float16 if on else torch.bfloat16
    return lambda: torch.autocast(device, dtype=kind, enabled=on), torch.amp.GradScaler(device, enabled=on)


def _mean_and_std(images: Pixels) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return mean and standard deviation of each channel, from its exact histogram; a constant channel has 1."""
    counts = np.stack([np.bincount(images[..., c].ravel(), minlength=256) for c in range(images.shape[3])])
    share, values = counts / counts.sum(axis=1, keepdims=True), np.arange(256.0)
    mean = share @ values
    std = np.sqrt((share * (values - mean[:, None]) ** 2).sum(axis=1))
    return mean.astype(np.float32), np.where(std > 0, std, 1.0).astype(np.float32)
