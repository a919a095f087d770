"""``conformesh view``: a mesh that runs, or runs that were recorded, in a browser."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from conformesh.cli import console, options
from conformesh.cli.command import PATH, Argument, Option, WholeNumber, command
from conformesh.cli.recording import RecordingOptions, catch_interrupts, write_recordings
from conformesh.mesh.config.device_toml import DEVICE_FILE
from conformesh.mesh.http.address import ADDRESS_VARIABLE, SOCKET_NAME
from conformesh.view.trace import Trace, TracedRun

if TYPE_CHECKING:
    from conformesh.view.mesh_watch import MeshWatch
    from conformesh.view.recording import Recording

_ACCESS = "Beyond this machine"


@command(
    Argument(
        "what",
        "[WHAT]...",
        "Trace files, the folder of a mesh or of a device, a node's socket or 127.0.0.1:PORT; several are shown side "
        "by side. By default the device whose folder this is.",
        nargs=-1,
    ),
    Option("--port <int>", "Listen there; 0 takes a free one.", type=WholeNumber(), default=8750),
    Option("--open", "Open the page in a browser.", name="open_"),
    Option("--http HOST:PORT", "Where the node answers that was started with --http."),
    Option("--host NAME", "Listen there; beyond 127.0.0.1 only with a token.", default="127.0.0.1", panel=_ACCESS),
    Option(
        "--token FILE",
        "Ask for the token in this file's first line; made and printed where one is needed and none given.",
        type=PATH,
        panel=_ACCESS,
    ),
    Option("--cert FILE", "A certificate, for TLS.", type=PATH, panel=_ACCESS),
    Option("--key FILE", "Its private key.", type=PATH, panel=_ACCESS),
    options.recording_options(view=False),
    Option("--attached", hidden=True),
)
def view(
    what: tuple[str, ...],
    port: int,
    open_: bool,
    http: str | None,
    host: str,
    token: Path | None,
    cert: Path | None,
    key: Path | None,
    recording: RecordingOptions,
    attached: bool,
) -> None:
    """Show a mesh that runs, or runs that were recorded, in a browser.

    Looking changes nothing: a node is only asked what it shows of itself. Until Ctrl-C; then the trace and the report
    are written. Of trace files alone they are written at once, and no page is served.
    """
    words = what or (_here(),)
    replays = [word for word in words if Path(word).is_file()]
    if len(replays) == len(words) and any(recording):
        write_recordings([run for word in words for run in Trace.load(word).runs], recording)
        return
    from conformesh.view.server import parse_view_address, read_token, serving_view

    at = f"{f'[{host}]' if ':' in host else host}:{port}"
    parse_view_address(at)  # a mistake is said before anybody is asked
    access: dict[str, Any] = {"token": None if token is None else read_token(token), "cert": cert, "key": key}
    with catch_interrupts() as interrupts, ExitStack() as stack:
        if attached:
            threading.Thread(target=_wait_for_stdin, args=(interrupts,), daemon=True).start()
        sources = [_source(word, http, stack) for word in words]
        shows = serving_view(
            lambda: [recording for source in sources for recording in source.recordings()],
            at,
            say=console.print_status,
            details=lambda run, row: _details(sources, run, row),
            **access,
        )
        url = stack.enter_context(shows)
        if open_:
            import webbrowser

            webbrowser.open(url)
        interrupts.get()
        if any(recording):
            write_recordings([run for source in sources for run in source.runs()], recording)


class _Replay:
    """The runs of a trace file, as a source of what is shown."""

    def __init__(self, path: str) -> None:
        from conformesh.view.recording import recording_of_run

        self._runs = Trace.load(path).runs
        self._recordings = [recording_of_run(run) for run in self._runs]

    def recordings(self) -> Sequence[Recording]:
        return self._recordings

    def runs(self) -> list[TracedRun]:
        return self._runs

    def details(self, run: int, row: int) -> dict[str, Any] | None:
        return None


def _source(word: str, http: str | None, stack: ExitStack) -> _Replay | MeshWatch:
    """Return what a word names: a file of a trace, or a mesh that is watched from now on."""
    if Path(word).is_file():
        return _Replay(word)
    from conformesh.view.mesh_watch import MeshWatch

    return stack.enter_context(MeshWatch(word, http=http))


def _details(sources: Sequence[_Replay | MeshWatch], run: int, row: int) -> dict[str, Any] | None:
    for source in sources:
        many = len(source.recordings())
        if run < many:
            return source.details(run, row)
        run -= many
    return None


def _here() -> str:
    """Return the node that the environment names, or this folder, if it is a device's or a mesh's."""
    if os.environ.get(ADDRESS_VARIABLE):
        return os.environ[ADDRESS_VARIABLE]
    if Path(DEVICE_FILE).is_file() or Path(SOCKET_NAME).exists() or any(Path().glob(f"*/{DEVICE_FILE}")):
        return "."
    raise ValueError(
        "say what to look at: trace files (written with --trace), the folder of a mesh or of a device, or where a node "
        "answers; this folder is none of these"
    )


def _wait_for_stdin(interrupts: SimpleQueue[None]) -> None:
    """Say so when stdin has ended: whoever started this process has."""
    while os.read(0, 4096):
        pass
    interrupts.put(None)
