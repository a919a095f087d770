"""Experiments: what a study of calibration needs besides calibration itself.

`comparison` runs every method on the same scores and recommends one, `planning` measures costs by simulation, `sweeps`
runs cells (a network, a method, a draw) in parallel with a cache. `reproduction` computes the paper's figures again:
experiments, their cases and curves, the paper's sentences as findings that curves confirm or not, verdicts, a report.
`datasets` loads images and outputs, downloads them and splits rows over devices; `training` trains a model. No method,
guarantee or score is defined here, except the paper's own variants in `reproduction.paper_methods`. May import
everything except `cli`; only `cli` and the documentation import it.
"""
