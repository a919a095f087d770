"""A mesh: one folder and one process per device, with links along the edges of the graph.

`config`  what a mesh is made of before it runs: folders, certificates, rosters, scores, and checks of them
`link`    the links of one device, over Eclipse Zenoh; `sockets` adjusts their sockets for bad networks
`node`    a device at work: its files, its runs, its status
`http`    the local service of a node, and the client for programs on the same machine

`overview` asks the nodes of a mesh for ``mesh status``, `processes` starts all of them on one machine, and
`folder_lock` keeps two processes out of one folder. The protocol itself, without I/O, is in `peer`. The mesh imports
everything below it, and neither `view` nor `cli`.
"""
