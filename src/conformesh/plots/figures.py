"""Figures that a notebook shows and a path keeps, whether or not pyplot was imported.

Only what draws imports this module: it loads Matplotlib.
"""

from __future__ import annotations

import io
from typing import Any

from matplotlib.figure import Figure

from conformesh.plots.pictures import FilePath, picture_file

_DPI = 150  # dots per inch of what a notebook shows and of .png files


class NotebookFigure(Figure):
    """A figure of its own: a notebook shows it as PNG, and no window manager knows of it."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=_DPI)
        return buffer.getvalue()


def save_figure(figure: Any, path: FilePath) -> Any:
    """Return a figure, after it was written where a path is given: .png, .pdf or .svg."""
    if path is not None:
        figure.savefig(picture_file(path), dpi=_DPI)
    return figure


def whole_figure(axes: Any) -> Any:
    """Return the whole figure that axes are part of, also where they are in a subfigure."""
    return axes.get_figure(root=True)
