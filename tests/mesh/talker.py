"""A device that only talks: ``talker.py FOLDER SECONDS`` greets all its neighbours ten times a second.

It prints a line for everything that it hears: the row of who said it, and the moment on the monotonic clock.
"""

import sys
import time

from conformesh.mesh.config.device_toml import read_device
from conformesh.mesh.link import open_links
from conformesh.peer.interface import EVERYBODY

EVERY = 0.1


def talk(folder, seconds):
    """Talk and listen for so long."""
    with open_links(read_device(folder)) as transport:
        due = time.monotonic()
        end = due + seconds
        while (now := time.monotonic()) < end:
            if now >= due:
                due += EVERY
                transport.send(EVERYBODY, b"hello")
            for sender, _ in transport.receive(due - time.monotonic()):
                print(sender, time.monotonic(), flush=True)


if __name__ == "__main__":
    talk(sys.argv[1], float(sys.argv[2]))
