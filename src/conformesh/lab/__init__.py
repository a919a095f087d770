"""Experiments: what a study of calibration needs besides calibration itself.

`comparison` runs every method on the same scores, `planning` measures costs by simulation, `sweeps` runs grids of
networks, methods and draws, and `reproduction` computes the paper's figures again. `datasets` and `training` provide
data and a model. No method, guarantee or score is defined here, except the paper's own variants in
`reproduction.paper_methods`. May import everything except `cli`; only `cli` and the documentation import it.
"""
