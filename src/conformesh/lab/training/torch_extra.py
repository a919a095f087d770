"""Import PyTorch, an optional dependency, and choose the device on which it computes."""

from __future__ import annotations

from typing import Any

TORCH_DEVICES = ("auto", "cpu", "cuda", "mps")  # the first is the fastest that is available


def import_torch() -> Any:
    """Return the module torch, or raise an error that says how to install it."""
    try:
        import torch
    except ImportError as problem:
        raise ImportError(f"training needs PyTorch ({problem}): pip install 'conformesh[torch]'") from problem
    return torch


def choose_torch_device(name: str = "auto") -> str:
    """Return the device of that name, which must be available; `auto` is the fastest one.

    Parameters
    ----------
    name
        One of `TORCH_DEVICES`: `cuda` is a graphics card of NVIDIA (or AMD), `mps` that of a Mac.
    """
    if name not in TORCH_DEVICES:
        raise ValueError(f"device must be {', '.join(TORCH_DEVICES[:-1])} or {TORCH_DEVICES[-1]}, got {name!r}")
    torch = import_torch()
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return next(device for device, is_there in available.items() if is_there)
    if not available[name]:
        found = ", ".join(device for device, is_there in available.items() if is_there)
        raise ValueError(f"device {name!r} is not here, PyTorch {torch.__version__} found: {found}")
    return name
