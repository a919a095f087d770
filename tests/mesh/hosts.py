"""Real hosts on this machine: network namespaces with one link each, to a switch that delays, loses and cuts.

Every host has an address in one private network, a loopback and nothing else: no default route, no link to the outside.
Namespaces have no names and hang on file descriptors of this process, hosts' processes die with it, and the switch ends
when its input does, so that nothing is left behind, however a test ends.
"""

import ctypes
import fcntl
import functools
import itertools
import json
import os
import shutil
import struct
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

NETWORK = "10.87.0"
DEVICE = "tun0"
NEW_NETWORK = 0x40000000  # CLONE_NEWNET
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
COMMANDS = ("ip", "nsenter", "setpriv")
SWITCH = Path(__file__).with_name("switch.py")


def address_of(k):
    """Return the address of a host, counted from 0."""
    return f"{NETWORK}.{k + 1}"


@functools.cache
def why_not():
    """Return why there cannot be hosts here, or an empty text."""
    if sys.platform != "linux":
        return f"network namespaces are Linux's, this is {sys.platform}"
    missing = [command for command in COMMANDS if shutil.which(command) is None]
    if missing:
        return f"hosts are made with {' and '.join(missing)}, not here"
    try:
        with Hosts(1):
            return ""
    except OSError as problem:
        return f"no network namespace with a TUN device: {problem}; root on a Linux machine may make them"


class Hosts:
    """So many hosts and the switch between them, in a `with` block."""

    def __init__(self, count):
        self.addresses = [address_of(k) for k in range(count)]
        self._namespaces, self._processes = [], []

    def __enter__(self):
        with ExitStack() as stack:
            for _ in self.addresses:
                self._namespaces.append(_in_thread(_new_namespace))
                stack.callback(os.close, self._namespaces[-1])
            self._switch = stack.enter_context(self._start_switch())
            for where, address in zip(self._namespaces, self.addresses, strict=True):
                _within(where, lambda address=address: _connect(address))
            stack.callback(self._kill_all)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error):
        return self._stack.__exit__(*error)

    def _start_switch(self):
        """Start the switch with a device of every host, which it alone holds then."""
        with ExitStack() as stack:
            handles = []
            for where in self._namespaces:
                handles.append(_within(where, _new_device))
                stack.callback(os.close, handles[-1])
            words = [f"{address}={handle}" for address, handle in zip(self.addresses, handles, strict=True)]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            return subprocess.Popen([sys.executable, "-I", "-S", str(SWITCH), *words], pass_fds=handles, **pipes)

    def _kill_all(self):
        for process in self._processes:
            with process:  # closes what it has of pipes, and waits
                process.kill()

    def set(self, **orders):
        """Tell the switch: `delay`, `loss`, `seed`, `cut` (pairs of hosts); return its counts once that holds."""
        if "cut" in orders:
            orders["cut"] = [[self.addresses[a], self.addresses[b]] for a, b in orders["cut"]]
        self._switch.stdin.write(json.dumps(orders) + "\n")
        self._switch.stdin.flush()
        return json.loads(self._switch.stdout.readline())

    def split(self, *parts):
        """Cut every link between these sets of hosts; without any, heal all."""
        return self.set(cut=[(a, b) for one, other in itertools.combinations(parts, 2) for a in one for b in other])

    def start(self, k, command, **options):
        """Start a command on a host; it is killed at the end at the latest."""
        where = f"--net=/proc/{os.getpid()}/fd/{self._namespaces[k]}"
        within = ["nsenter", where, "--", "setpriv", "--pdeathsig", "KILL", "--", *command]
        self._processes.append(subprocess.Popen(within, **options))
        return self._processes[-1]

    def inside(self, k, function):
        """Return what a function returns on a host: the sockets that it opens are that host's."""
        return _within(self._namespaces[k], function)


# --- in threads of their own: only a thread may go to another namespace, and it need not come back --------------------


def _in_thread(function):
    outcome = []

    def run():
        try:
            outcome.append((function(), None))
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    ((value, error),) = outcome
    if error is not None:
        raise error
    return value


def _within(namespace, function):
    def enter():
        _libc("setns", namespace, NEW_NETWORK)
        return function()

    return _in_thread(enter)


def _libc(name, *arguments):
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments):
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


def _new_namespace():
    _libc("unshare", NEW_NETWORK)
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _new_device():
    """Open a TUN device, which is there for as long as somebody holds what this returns."""
    handle = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.ioctl(handle, TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), IFF_TUN | IFF_NO_PI))
    except OSError:
        os.close(handle)
        raise
    return handle


def _connect(address):
    """Give a host its address, and a loopback; the only route is that to the other hosts."""
    Path("/proc/sys/net/ipv6/conf/all/disable_ipv6").write_text("1")
    for words in (f"addr add {address}/24 dev {DEVICE}", f"link set {DEVICE} up", "link set lo up"):
        done = subprocess.run(["ip", *words.split()], capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(f"ip {words}: {done.stderr.strip()}")
