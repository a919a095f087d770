"""Routes of a view: the page and its files, events, details of a device, downloads and health. All are read-only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route, Router

from conformesh.view.events import EventFeed, Recordings, visible_run
from conformesh.view.guard import page_error_response
from conformesh.view.report import PAGE_FILE, SCRIPT_FILES, STYLE_FILES, read_page_file, report_html
from conformesh.view.trace import Trace

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

AskDetails = Callable[[int, int], dict[str, Any] | None]  # from the number of a run and the row of a device

_MAX_STREAMS = 32  # clients that follow events: more than people who watch, few enough for one event loop
_MAX_DOWNLOADS = 2  # downloads at a time: each is in memory until it is sent
MAX_QUESTIONS = 16  # questions to devices under way, and answers that are kept
_FRESH_SECONDS = 0.5  # seconds for which an answer of a device is used again: several pages ask once a second
_CHUNK_BYTES = 2**16  # bytes that are sent at a time
_CONTENT_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
}
_JSON_TYPE = "application/json"


class ViewRoutes:
    """The routes of a view, and what they share.

    Parameters
    ----------
    recordings
        Returns what is shown.
    details
        Asks a device of a live run; returns None if it cannot be asked. None if there are no live devices.
    streams
        How many clients may follow events at a time.
    """

    def __init__(self, recordings: Recordings, details: AskDetails | None = None, streams: int = _MAX_STREAMS) -> None:
        self.recordings, self.details, self.streams = recordings, details, streams
        self.feed = EventFeed(recordings)
        self._following = self._downloads = 0
        self._asked: dict[tuple[int, int], asyncio.Task[Response]] = {}
        self._fresh: dict[tuple[int, int], tuple[float, Response]] = {}
        self._pool = ThreadPoolExecutor(4, thread_name_prefix="view-answers")

    def router(self) -> Router:
        """Return the routes. Files are a fixed table, so that no path can lead to another file."""
        routes = [
            Route("/", _page_file(PAGE_FILE)),
            *(Route(f"/page/{name}", _page_file(name)) for name in (*STYLE_FILES, *SCRIPT_FILES)),
            Route("/events", self._events),
            Route("/device/{run}/{row}", self._device),
            Route("/trace.json", self._trace),
            Route("/report.html", self._report),
            Route("/health", self._health),
        ]
        return Router(routes, redirect_slashes=False, default=_not_found)

    def stop(self) -> None:
        """End all streams. Call it in the event loop."""
        self.feed.stop()

    def close(self) -> None:
        """End the threads. Call it after the event loop."""
        self.feed.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _events(self, request: Request) -> Response:
        if self._following >= self.streams:
            words = f"{self.streams} pages follow this view already; close one of them"
            return page_error_response(503, words, **{"Retry-After": "5"})
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        self._following += 1
        return _NotifyingResponse(self.feed.stream(), self._end_stream, media_type="text/event-stream")

    def _end_stream(self) -> None:
        self._following -= 1

    async def _health(self, request: Request) -> Response:
        return _json_response({"healthy": True, "pages": self._following})

    # --- details of a device ------------------------------------------------------------------------------------------

    async def _device(self, request: Request) -> Response:
        words = request.path_params["run"], request.path_params["row"]
        if not all(word.isascii() and word.isdecimal() and len(word) < 9 for word in words):
            got = "/".join(words)[:60]
            return page_error_response(404, f"a device is named by the numbers of its run and its row, got {got!r}")
        which = int(words[0]), int(words[1])
        when, answer = self._fresh.get(which, (0.0, None))
        if answer is not None and time.monotonic() - when < _FRESH_SECONDS:
            return answer
        if which not in self._asked:
            if len(self._asked) >= MAX_QUESTIONS:
                return page_error_response(
                    503, f"{MAX_QUESTIONS} devices are being asked already; try again in a moment"
                )
            self._asked[which] = asyncio.create_task(self._ask(which))
        return await asyncio.shield(self._asked[which])

    async def _ask(self, which: tuple[int, int]) -> Response:
        """Ask a device, once for all clients that want to know; the answer is reused for a moment."""
        try:
            answer: Response = await self._in_pool(self._details_of, *which)
            if len(self._fresh) >= MAX_QUESTIONS:
                self._fresh.clear()
            self._fresh[which] = time.monotonic(), answer
            return answer
        finally:
            del self._asked[which]

    def _details_of(self, run: int, row: int) -> Response:
        recordings = [*self.recordings()]
        if run >= len(recordings) or row >= len(recordings[run].heading.devices):
            return page_error_response(404, f"there is no device in row {row} of run {run}")
        if recordings[run].heading.private:
            return page_error_response(404, "this run is private: single devices are not shown")
        found = None if self.details is None else self.details(run, row)
        if found is None:
            return page_error_response(404, "this device cannot be asked: only what was recorded is known")
        return _json_response(found)

    # --- downloads ----------------------------------------------------------------------------------------------------

    async def _trace(self, request: Request) -> Response:
        return await self._download(request, "trace.json", _JSON_TYPE, lambda: self._trace_so_far().to_json())

    async def _report(self, request: Request) -> Response:
        return await self._download(
            request, "report.html", _CONTENT_TYPES["html"], lambda: report_html(self._trace_so_far()).encode()
        )

    def _trace_so_far(self) -> Trace:
        return Trace.of(visible_run(recording) for recording in [*self.recordings()])

    async def _download(self, request: Request, name: str, kind: str, make: Callable[[], bytes]) -> Response:
        headers = {"Content-Disposition": f'attachment; filename="conformesh-{name}"'}
        if request.method == "HEAD":
            return Response(media_type=kind, headers=headers)
        if self._downloads >= _MAX_DOWNLOADS:
            return page_error_response(503, f"{_MAX_DOWNLOADS} downloads are under way already; try again in a moment")
        self._downloads += 1
        try:
            body = await self._in_pool(make)
        except BaseException:
            self._downloads -= 1
            raise
        headers["Content-Length"] = str(len(body))
        return _NotifyingResponse(_chunks(body), self._end_download, headers=headers, media_type=kind)

    def _end_download(self) -> None:
        self._downloads -= 1

    def _in_pool(self, work: Callable[..., Any], *words: Any) -> Awaitable[Any]:
        return asyncio.get_running_loop().run_in_executor(self._pool, work, *words)


class _NotifyingResponse(StreamingResponse):
    """A streamed response that calls a function when it is over, however it ends."""

    def __init__(self, chunks: AsyncIterator[bytes], on_end: Callable[[], None], **more: Any) -> None:
        super().__init__(chunks, **more)
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()


async def _chunks(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), _CHUNK_BYTES):
        yield body[start : start + _CHUNK_BYTES]


def _page_file(name: str) -> Callable[[Request], Awaitable[Response]]:
    """Return the handler of a file of the page."""
    kind = _CONTENT_TYPES[name.rpartition(".")[2]]

    async def respond(request: Request) -> Response:
        return Response(read_page_file(name), media_type=kind)

    return respond


def _json_response(content: dict[str, Any]) -> Response:
    return Response(msgspec.json.encode(content), media_type=_JSON_TYPE)


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    known = "/, /events, /device/RUN/ROW, /trace.json, /report.html and /health"
    await page_error_response(404, f"no such path; a view has {known}")(scope, receive, send)
