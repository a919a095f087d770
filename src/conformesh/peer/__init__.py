"""One device of a mesh without I/O: received frames and the time go in, frames to send come out.

`Device` runs in rounds and `AsyncDevice` in asynchronous mode. Both are composed of small parts (`links`,
`roster_exchange`; `membership`, `presence` and `round_exchange`; `entry_exchange` and `entry_store`); what an engine
gives them and sees of them is in `interface`. `loopback` connects devices in one process for tests. Sockets, threads
and clocks are not here but in `mesh`; the only I/O is the journal's file.
This package imports `protocols` and what lies below it, never `mesh` or `pipeline`.
"""
