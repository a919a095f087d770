"""The local service of a node, and its client: HTTP on a Unix socket or a loopback port, and never beyond."""
