"""``conformesh scores train``: train the shared model, and save its outputs for the held-out images."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from conformesh.cli import console, options
from conformesh.cli.command import PATH, RUNNING, Argument, Number, Option, WholeNumber, command
from conformesh.common.progress import Progress
from conformesh.files.table_writers import check_file_ending, write_columns
from conformesh.lab.datasets.datasets import DATASETS, HELD_OUT_PARTS, load_images
from conformesh.lab.datasets.downloads import DOWNLOAD_CHUNK
from conformesh.lab.datasets.images import ImageData
from conformesh.lab.training.recipe import RATE_SCHEDULES, Recipe
from conformesh.lab.training.torch_extra import TORCH_DEVICES, choose_torch_device, import_torch
from conformesh.lab.training.train import Epoch, TrainedModel, TrainingObserver, train_model

_STANDARD = Recipe()


@command(
    Argument("dataset", "DATASET", f"{', '.join(DATASETS)}, or the .npz file of another MedMNIST."),
    options.out_option("Where logits and labels go.", default="outputs.npz"),
    Option("--data DIR|FILE", "Where the images are or go; by default ~/.cache/conformesh.", type=PATH),
    Option("--download/--no-download", "Fetch images that are not there.", default=True),
    Option(f"--held {'|'.join(HELD_OUT_PARTS)}", "Which images are held out.", default=HELD_OUT_PARTS[0]),
    Option("--epochs <int>", "Passes over the training images.", type=WholeNumber(1), default=_STANDARD.epochs),
    Option("--batch <int>", "Images in a step.", type=WholeNumber(2), default=_STANDARD.batch),
    Option("--lr <float>", "The largest learning rate.", type=Number(), default=_STANDARD.lr),
    Option(f"--schedule {'|'.join(RATE_SCHEDULES)}", "How the learning rate changes.", default=_STANDARD.schedule),
    Option("--weight-decay <float>", "Pull of the weights towards 0.", type=Number(), default=_STANDARD.weight_decay),
    Option("--smoothing <float>", "Label smoothing; changes the scores.", type=Number(), default=_STANDARD.smoothing),
    Option("--width <float>", "Factor of the 16, 32 and 64 channels.", type=Number(), default=_STANDARD.width),
    Option(f"--device {'|'.join(TORCH_DEVICES)}", "Where to compute.", default=TORCH_DEVICES[0], panel=RUNNING),
    Option("--threads <int>", "Processor cores to use; by default all.", type=WholeNumber(1), panel=RUNNING),
    options.seed_option("Seed of weights, order and shifts."),
    *options.checkpoint_options("Saved after every epoch; by default beside --out, as .checkpoint."),
    options.json_option(),
)
def train(
    dataset: str,
    out: Path,
    data: Path | None,
    download: bool,
    held: str,
    device: str,
    threads: int | None,
    checkpoint: Path | None,
    resume: bool,
    as_json: bool,
    **how: Any,
) -> None:
    """Train a small ResNet-14 on images, and save its outputs for the images that were held out.

    The outputs are what `conformesh scores make` and `conformesh reproduce --data` read. A run that was interrupted
    goes on from its last epoch when the same command is given again. Needs PyTorch: pip install 'conformesh[torch]'.
    """
    recipe = Recipe(**how)
    check_file_ending(out, (".npz",))
    place = _prepared(device, threads)
    saved = out.with_suffix(".checkpoint") if checkpoint is None else checkpoint
    for file in (out, saved):  # hours before they are written
        file.parent.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    images = _load(dataset, data, held, download)
    trained = _train(images, recipe, place, saved, resume)
    write_columns(out, {"logits": trained.logits, "labels": trained.labels})
    facts = _facts(dataset, images, trained, recipe, time.perf_counter() - start)
    facts |= {"checkpoint": str(saved), "out": str(out)}
    if as_json:
        print(json.dumps(facts))
    else:
        console.print_facts("conformesh scores train", _in_words(facts))


def _prepared(device: str, threads: int | None) -> str:
    """See to it that PyTorch and the device are there before anything is downloaded."""
    try:
        torch = import_torch()
    except ImportError as problem:
        raise ValueError(str(problem)) from problem
    if threads is not None:
        torch.set_num_threads(threads)
    return choose_torch_device(device)


def _load(dataset: str, data: Path | None, held: str, download: bool) -> ImageData:
    def arrived(done: int, total: int | None) -> None:
        if not progress.unit:  # the first bytes
            console.print_note(f"downloading {DATASETS[dataset].source.url}")
            progress.unit = "MB"
            progress.begin(None if total is None else -(-total // DOWNLOAD_CHUNK), what=f"downloading {dataset}")
        progress.steps = -(-done // DOWNLOAD_CHUNK)

    with Progress(f"reading {dataset}") as progress:
        return load_images(dataset, data, held=held, download=download, observer=arrived)


def _train(images: ImageData, recipe: Recipe, device: str, saved: Path, resume: bool) -> TrainedModel:
    done = 0

    def tell(epoch: Epoch) -> None:
        nonlocal done
        done = epoch.number
        progress.what = _under_way(done + 1, recipe.epochs)
        console.print_status(
            f"epoch {epoch.number} of {recipe.epochs}: loss {epoch.loss:.4f}, accuracy {epoch.accuracy:.4f}, "
            f"{epoch.seconds:.1f} s"
        )

    def begin(total: int, before: int) -> None:
        nonlocal done
        done = before * recipe.epochs // total
        progress.begin(total, before, _under_way(done + 1, recipe.epochs))
        if done:
            console.print_note(f"going on after epoch {done} of {recipe.epochs}, from {saved}; --no-resume starts anew")

    try:
        with Progress("preparing", unit="steps") as progress:
            observer = TrainingObserver(begin, progress.step, tell)
            return train_model(images, recipe, device=device, checkpoint=saved, resume=resume, observer=observer)
    except KeyboardInterrupt:
        if done:
            console.print_note(
                f"epoch {done} of {recipe.epochs} is saved in {saved}; the same command goes on from there"
            )
        raise


def _under_way(epoch: int, epochs: int) -> str:
    return f"epoch {epoch} of {epochs}" if epoch <= epochs else "computing the outputs"


def _facts(dataset: str, images: ImageData, trained: TrainedModel, recipe: Recipe, seconds: float) -> dict[str, Any]:
    last = trained.history[-1]
    return {
        "dataset": dataset,
        "classes": images.classes,
        "train_images": len(images.train_images),
        "held_images": len(images.held_images),
        "accuracy": trained.accuracy,
        "train_loss": last.loss,
        "train_accuracy": last.accuracy,
        "parameters": trained.model.parameters,
        "device": trained.device,
        "resumed_epochs": trained.resumed,
        "recipe": asdict(recipe),
        "seconds": seconds,
    }


def _in_words(facts: dict[str, Any]) -> list[tuple[str, str]]:
    recipe = facts["recipe"]
    return [
        ("accuracy", f"{facts['accuracy']:.4f} on {facts['held_images']:,} held-out images"),
        (
            "training",
            f"loss {facts['train_loss']:.4f}, accuracy {facts['train_accuracy']:.4f} in epoch {recipe['epochs']}, on "
            f"{facts['train_images']:,} images of {facts['classes']} classes",
        ),
        ("model", f"ResNet-14, width {recipe['width']:g}, {facts['parameters']:,} parameters, on {facts['device']}"),
        ("outputs", facts["out"]),
        ("checkpoint", facts["checkpoint"]),
        ("seconds", f"{facts['seconds']:.1f}"),
    ]
