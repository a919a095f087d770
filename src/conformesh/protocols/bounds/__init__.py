"""Error bounds: how far the result of a method can be from the truth, from public numbers, before or after the run.

One module for each kind of bound: `histogram` (H-DCP), `tracked_weights` (H-DCP by projection), `quantile` (Q-DCP) and
`quantile_of_quantiles` (FedCP-QQ). Pure functions of numbers and arrays; the proofs are in docs/guarantees.md.
All bounds are rounded to the safe side: never smaller than the true error.
"""
