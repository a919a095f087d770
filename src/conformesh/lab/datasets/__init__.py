"""Data: files of scores and model outputs, and the real images of the demo."""
