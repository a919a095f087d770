"""Pictures of networks, methods, comparisons and plans."""

from conformesh.plots.pictures import Agreement, Measured, draw_agreement, draw_comparison, draw_methods

__all__ = ["Agreement", "Measured", "draw_agreement", "draw_comparison", "draw_methods"]
