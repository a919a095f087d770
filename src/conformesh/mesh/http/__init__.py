"""The local service of a node and its client: HTTP on a Unix socket or a loopback port, and never beyond.

`server` moves bytes within limits, `request` reads one request without I/O, `replies` and `online_replies` answer it,
`messages` has requests and replies as Structs, `openapi` and `metrics` are derived from the same Structs. `client`,
`address` and `paths` are light, because programs on a device import them. What a node does is in `mesh.node`.
"""
