"""Networks of devices: topologies by name, weights for averaging, spectra, and where to draw devices.

A network is an undirected, connected graph in compressed rows. How messages travel is decided in `protocols` and
`engines`, and walks over its edges are `kernels`. Imports `common` and `kernels`.
"""
