"""Certified sets for a plain PyTorch model, whose calibration rows lie on ten devices: `python run.py`."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from conformesh import Network, Result, calibrate, scores
from conformesh.lab.datasets.partition import partition

DEVICES, TRAINING, CALIBRATION, EPOCHS, ALPHA = 10, 150, 800, 60, 0.05
SCORE = scores.LAC()


def digits() -> tuple[Tensor, Tensor]:
    """Return the handwritten digits of scikit-learn, in random order: images of shape (rows, 1, 8, 8), and labels."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels))
    pixels = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    return pixels[order], torch.tensor(labels)[order]


def network_of(classes: int = 10) -> nn.Module:
    """Return a small convolutional network."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16 * 16, classes)
    )


def train(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    """Train with Adam, all rows at once."""
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(EPOCHS):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimiser.step()


def main() -> tuple[list[Tensor], Result]:
    """Train, score at every device, agree, and show what the sets are worth."""
    torch.manual_seed(0)
    images, labels = digits()
    model = network_of()
    train(model, images[:TRAINING], labels[:TRAINING])
    images, labels = images[TRAINING:], labels[TRAINING:]
    model.eval()
    with torch.no_grad():
        likely = model(images).softmax(dim=1)

    # each device scores its own rows, and what it hands over is a tensor
    home = torch.from_numpy(partition(labels[:CALIBRATION], DEVICES, "dirichlet", rng=0))
    held = []
    for device in range(DEVICES):
        own = torch.nonzero(home == device).flatten()
        held.append(torch.from_dlpack(SCORE(likely[own], labels[own])))

    result = calibrate(held, Network.torus(5, 2), alpha=ALPHA, score=SCORE)
    print(f"PyTorch: {DEVICES} devices with {sum(map(len, held))} scores, each with {min(map(len, held))} or more")
    print(f"threshold {result.threshold:.4f} on every device; {result.certificate}")
    print(result.cost)
    print(result.evaluate(likely[CALIBRATION:], labels[CALIBRATION:]))
    image = likely[CALIBRATION : CALIBRATION + 1]
    print(f"the first new image is one of {result.predict(image)[0].nonzero()[0].tolist()}")
    return held, result


if __name__ == "__main__":
    main()
