"""A real mesh: one folder and one process per device, links along the graph, each side known by its certificate.

`link`    the links of a device, over Eclipse Zenoh
`config`  folders, certificates and checks
`node`    a device at work
`http`    what it answers programs on its own machine, and the client they use
"""
