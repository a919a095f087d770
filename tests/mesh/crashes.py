"""Kills at failpoints: where a process may die, a process that does, and what the folder of a mesh looks like then."""

import os
import re
import signal
import traceback
from contextlib import contextmanager

from conformesh.files import atomic_writes
from conformesh.files.atomic_writes import KILLED
from conformesh.mesh.config.roster import read_roster_document

WRITE = ("begin", "torn", "written", "synced", "renamed", "done")
APPEND = ("before append", "torn append", "appended")
CUT = ("before cut", "cut")
MOVE = ("before move", "moved", "move done")


@contextmanager
def at_failpoints(visit):
    """Call something at every failpoint inside the block."""
    before, atomic_writes.on_failpoint = atomic_writes.on_failpoint, visit
    try:
        yield
    finally:
        atomic_writes.on_failpoint = before


def passed(action):
    """Return the failpoints that something passes, in order."""
    names = []
    with at_failpoints(names.append):
        action()
    return names


def kill(action, number):
    """Do something in a process of its own, which dies at the failpoint of this number, counted from 1.

    A forked process dies as a killed one does: no handler runs, its locks end and what it wrote stays. Returns whether
    it died; False means that it came to its end before.
    """
    left = number

    def visit(name):
        nonlocal left
        left -= 1
        if left == 0:
            os._exit(KILLED)

    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(60)
            with at_failpoints(visit):
                action()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, KILLED), f"the command failed instead of being killed: exit code {code}"
    return code == KILLED


def kind_of(failpoint):
    """Return a failpoint without the name of a device: the certificates of all devices are one kind of file.

    >>> kind_of("late~2.pem/torn"), kind_of("device-03/moved"), kind_of("device.pem/torn")
    ('issued/torn', 'folder/moved', 'device.pem/torn')
    """
    file, _, step = failpoint.partition("/")
    if file.endswith(".pem") and file not in ("ca.pem", "device.pem"):
        file = "issued"
    return f"{file if re.search('[.]', file) or file == 'issued' else 'folder'}/{step}"


class TwoRostersError(AssertionError):
    """Two rosters of one mesh have the same number."""


class Signed:
    """Every roster that has ever been in a folder: whoever reads files may have taken it from there."""

    def __init__(self):
        self.digests = {}

    def look(self, root):
        for path in root.rglob("roster.json"):
            roster = read_roster_document(path.read_bytes(), str(path)).roster
            if self.digests.setdefault(roster.number, roster.digest) != roster.digest:
                raise TwoRostersError(f"{path}: another roster {roster.number} than before")
