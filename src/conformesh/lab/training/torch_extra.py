"""PyTorch, which is an extra: found when first needed, or missed in words; and the device it computes on."""

from __future__ import annotations

from typing import Any

DEVICES = ("auto", "cpu", "cuda", "mps")


def needs_torch() -> Any:
    """Return the module torch, or say how to install it."""
    try:
        import torch
    except ImportError as problem:
        raise ImportError(f"training needs PyTorch ({problem}): pip install 'conformesh[torch]'") from problem
    return torch


def pick_device(name: str = "auto") -> str:
    """Return the device of that name, which must be there; `auto` is the fastest that is.

    Parameters
    ----------
    name
        One of `DEVICES`: `cuda` is a graphics card of NVIDIA (or AMD), `mps` that of a Mac.
    """
    if name not in DEVICES:
        raise ValueError(f"device must be {', '.join(DEVICES[:-1])} or {DEVICES[-1]}, got {name!r}")
    torch = needs_torch()
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return next(device for device, is_there in there.items() if is_there)
    if not there[name]:
        found = ", ".join(device for device, is_there in there.items() if is_there)
        raise ValueError(f"device {name!r} is not here, PyTorch {torch.__version__} found: {found}")
    return name
