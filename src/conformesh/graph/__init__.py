"""Networks of devices: topologies by name, consensus weights, spectra, and where to draw devices.

A network is an undirected, connected graph in compressed rows. `edge_files` reads graphs from files. How messages
travel is decided in `protocols` and `engines`; searches over edges (breadth first, components, eccentricities) are
`kernels`. Imports `common`, `files` and `kernels`; `plots` when a network is drawn.
"""
