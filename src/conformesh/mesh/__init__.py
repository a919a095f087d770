"""A real mesh: one folder and one process per device, links along the graph, each side known by its certificate.

`config`        what a device knows, read from and written to ``device.toml``
`certificates`  an authority, the certificates it signs, and what is wrong with one
`folders`       make a mesh, add, revoke and renew a device, spread scores over the folders
`checking`      what one folder looks like before it starts, and whether several agree
`reach`         whether a neighbour answers, and as whom
"""
