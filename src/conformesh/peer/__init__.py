"""One device without input or output: its state machine, frames and journal; `loopback` drives it on virtual time."""
