"""Numerical loops on arrays, and the integers behind every guarantee (`ranks`).

`ranks` turns levels and mixtures into required ranks, `weighted_scores` holds sorted scores with integer weights,
`segments` counts per device and problem, `label_scores` computes scores and sets over labels, `pinball` finds roots,
`graph`, `neighbours`, `spreading` and `gossip` walk along edges and add up over neighbours, and `replies`, `varints`,
`bits`, `items` and `keys` pack what E-DCP sends (counts, quantile sketches, sets of rows) into bits. A loop that NumPy
runs well exists once; where Numba is measurably quicker, the same source is compiled or the function has a twin in
`compiled`, named `*_compiled`. Nothing here knows methods or files. Imports `common` only, and Numba in `compiled`.
"""
