"""The process of one device, without a command line around it: ``python -m conformesh.mesh.node.main JSON``.

What reads the command line takes as much memory as a fifth of a device, and nothing that stays up needs it. So
``conformesh node`` reads its words and then becomes this process, and ``conformesh mesh up`` starts it at once.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import signal
import sys
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from conformesh.mesh.config.device_config import DeviceConfig
    from conformesh.mesh.node.certified_result import CertifiedResult


@dataclass(frozen=True)
class Start:
    """How a device is started; what is None is as device.toml says, the rest as in ``conformesh node --help``."""

    folder: str
    once: bool = False
    http: str | None = None
    log: str = "words"
    settings: dict[str, str] = field(default_factory=dict)  # name -> text, instead of what device.toml has
    telemetry: bool = False
    debug: bool = False

    def command(self) -> list[str]:
        """Return the words that start the process."""
        given = {name: value for name, value in asdict(self).items() if value not in (None, False, {})}
        return [sys.executable, "-m", "conformesh.mesh.node.main", json.dumps(given)]

    def become(self) -> NoReturn:
        """Go on as that process: same number, same terminal, a fresh memory."""
        sys.stdout.flush()
        sys.stderr.flush()
        os.environ.setdefault("MALLOC_ARENA_MAX", "2")  # glibc would keep apart what each thread has freed
        if hasattr(signal, "SIGHUP"):
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until `run` can reload: a start reads everything anyway
        command = self.command()
        os.execv(command[0], command)


def run_node(start: Start) -> tuple[DeviceConfig, CertifiedResult | None]:
    """Run a device until it is stopped, or has calibrated once; return what it knows, and its threshold."""
    from conformesh.mesh.config.device_toml import read_device
    from conformesh.mesh.node.logs import set_up_log
    from conformesh.mesh.node.node import Node
    from conformesh.mesh.node.telemetry import make_traces

    def read() -> DeviceConfig:
        return override_settings(read_device(start.folder), start.settings)

    config = read()
    if start.log == "words":
        set_up_log(config.name, "words")
    else:
        set_up_log(config.name, "json", level=logging.DEBUG if start.log == "progress" else logging.INFO)
    traces = make_traces(config, start.telemetry)
    node = Node(config, start.http, traces, read)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: node.stop())
    if not start.once and hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, lambda *_: node.reload())
    if traces is not None:
        atexit.register(traces.close)  # after the result is printed, which waits for no collector
    node.run(start.once)
    return node.config, node.state.certified


def override_settings(config: DeviceConfig, texts: Mapping[str, str]) -> DeviceConfig:
    """Return the configuration with the settings that the command line names, by the names of `SETTINGS`."""
    from conformesh.mesh.config.settings import SETTINGS

    return config.with_settings(**{name: SETTINGS[name].read(text) for name, text in texts.items()})


# Fields that a device's result has besides those of the calibration.
RESULT_CONTEXT = ("device", "run", "roster", "roster_number", "lost")


def result_line(config: DeviceConfig, certified: CertifiedResult) -> str:
    """Return the result of a device that calibrated once, as one line."""
    about = dict(zip(RESULT_CONTEXT, _about(config, certified), strict=True))
    return json.dumps({**about, **certified.calibration.to_dict()})


def _about(config: DeviceConfig, certified: CertifiedResult) -> tuple[Any, ...]:
    return config.name, certified.run, certified.roster, certified.roster_number, certified.lost


def node_main(start: Start) -> int:
    """Run a device and print its result as JSON if it calibrates once; return the code, as the command line does."""
    from conformesh.peer.settings import PeerError

    try:
        config, certified = run_node(start)
    except Exception as error:
        if start.debug:
            traceback.print_exc()
        words = " ".join(str(error).split()) or type(error).__name__
        expected = isinstance(error, ValueError | TypeError | OverflowError | OSError)
        if not expected and not isinstance(error, PeerError):
            words = f"unexpected {type(error).__name__}: {words}; --debug shows the traceback"
        print(f"error: {words}", file=sys.stderr)
        return 2 if expected else 1
    if start.once and certified is not None:
        print(result_line(config, certified), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(node_main(Start(**json.loads(sys.argv[1]))))
