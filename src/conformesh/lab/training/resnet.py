"""A small residual network for small images: ResNet-14, the paper's kind of shared model.

Three stages of two blocks with two 3x3 convolutions each, one convolution before them and a linear layer behind:
6 n + 2 = 14 layers with weights for n = 2. Where a stage halves the image and doubles the channels, the shortcut takes
every second pixel and adds channels of zeros, so it has no weights of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from conformesh.common.random_streams import random_stream
from conformesh.lab.training.torch_extra import import_torch

if TYPE_CHECKING:
    from torch import Tensor

_CHANNELS = (16, 32, 64)  # channels of the stages
_BLOCKS = 2  # residual blocks in each stage


class ResNet14:
    """From images to logits, one for each class.

    Parameters
    ----------
    classes, channels
        Of the answer and of the images.
    width
        Factor of the channels inside, 16, 32 and 64.
    seed
        Of the first weights.

    Attributes
    ----------
    layers
        What PyTorch trains, saves and moves to a device; its buffers `mean` and `std` are those of the training
        images, channel by channel.
    """

    def __init__(self, classes: int, channels: int = 3, width: float = 1.0, seed: int = 0) -> None:
        torch = import_torch()
        nn = torch.nn
        widths = [max(1, round(width * channels)) for channels in _CHANNELS]
        with torch.random.fork_rng(devices=[]):  # leaves the caller's random numbers alone
            torch.default_generator.manual_seed(int(random_stream(seed, "weights").integers(2**63)))
            blocks, last = [], widths[0]
            for stage, many in enumerate(widths):
                for block in range(_BLOCKS):
                    stride = 2 if stage and not block else 1
                    blocks.append(
                        nn.Sequential(*_conv(nn, last, many, stride), nn.ReLU(inplace=True), *_conv(nn, many, many))
                    )
                    last = many
            self.layers: Any = nn.ModuleDict(
                {
                    "stem": nn.Sequential(*_conv(nn, channels, widths[0])),
                    "blocks": nn.ModuleList(blocks),
                    "head": nn.Linear(last, classes),
                }
            )
        self.layers.register_buffer("mean", torch.zeros(channels))
        self.layers.register_buffer("std", torch.ones(channels))

    def __call__(self, images: Tensor) -> Tensor:
        """Return the logits of images with values 0 to 255, shape (images, height, width, channels)."""
        functions = import_torch().nn.functional
        x = (images.float() - self.layers.mean) / self.layers.std
        x = functions.relu(self.layers["stem"](x.permute(0, 3, 1, 2)))
        for block in self.layers["blocks"]:
            change = block(x)
            x = functions.relu(change + _shortcut(x, change))
        return self.layers["head"](x.mean(dim=(2, 3)))

    @property
    def parameters(self) -> int:
        """How many numbers are trained."""
        return sum(values.numel() for values in self.layers.parameters())


def _conv(nn: Any, channels: int, out: int, stride: int = 1) -> tuple[Any, Any]:
    conv = nn.Conv2d(channels, out, 3, stride, padding=1, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return conv, nn.BatchNorm2d(out)


def _shortcut(x: Tensor, change: Tensor) -> Tensor:
    """Return x in the shape of what is added to it."""
    if x.shape == change.shape:
        return x
    more = change.shape[1] - x.shape[1]
    return import_torch().nn.functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, more))
