"""The loops of `kernels.replies`, compiled: the same source, so that a packet has the same bits."""

from __future__ import annotations

from types import FunctionType

from conformesh.kernels import replies as written
from conformesh.kernels.compiled import loop

globals().update({name: value for name, value in vars(written).items() if not name.startswith("__")})
for _name, _value in vars(written).items():
    if isinstance(_value, FunctionType) and _value.__module__ == written.__name__:
        globals()[_name] = loop(FunctionType(_value.__code__, globals(), _name))  # calls find the compiled ones here
