"""Access to a view: checks of the host name, of the page that sends a request, and of a token.

A page of another site can make a browser send requests to a server on this machine, also under a host name of its own
that resolves to it (DNS rebinding). So a request must name this server as its host, and must come from its own page or
from a typed address. From other machines it also needs the token, which a browser sends once and then has a cookie for.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import secrets
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOG = logging.getLogger("conformesh.view")
SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Connection": "close",  # one request each, so that idle connections can be dropped
}
_LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
_DEFAULT_PORTS = {"http": 80, "https": 443}  # ports that a browser leaves out of the Host header
# Values of Sec-Fetch-Site for our own page, and for an address that was typed.
_OWN_FETCH_SITES = ("same-origin", "none")
_HOST_HEADER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]@/\s]+)(?::([0-9]{1,5}))?")


def page_error_response(status: int, words: str, **headers: str) -> Response:
    """Return a JSON response that explains an error."""
    return JSONResponse({"error": words}, status, headers)


class Guard:
    """Middleware that checks requests and adds security headers to every response.

    Parameters
    ----------
    app
        The application that answers accepted requests.
    names
        Host names of this server, besides the address that a client has reached.
    port
        Where it listens.
    token
        A secret that clients must send; None if everybody on this machine may read.
    """

    def __init__(self, app: ASGIApp, names: Iterable[str], port: int, token: str | None = None) -> None:
        self.app, self.port = app, port
        self.names = {name.lower() for name in (*_LOCAL_NAMES, *names)}
        self._token = token
        # Two views on one machine have two cookies: browsers do not tell ports apart.
        self.cookie = f"conformesh-view-{port}"
        self._session = "" if token is None else hmac.new(token.encode(), b"session", hashlib.sha256).hexdigest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        begun = False

        async def with_headers(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                MutableHeaders(scope=message).update(SECURITY_HEADERS)
            await send(message)

        try:
            answer = self._check(Request(scope)) or self.app
            await answer(scope, receive, with_headers)
        except Exception as error:
            LOG.exception("a request failed unexpectedly")
            if begun:
                raise  # a truncated response must not look complete
            words = f"unexpected {type(error).__name__}; the log of the view has the details"
            await page_error_response(500, words)(scope, receive, with_headers)

    def _check(self, request: Request) -> Response | None:
        """Return the response that refuses a request or starts a session; None if the request may pass."""
        headers = request.headers
        if not self._is_host(headers.get("host", ""), request):
            return page_error_response(403, "this view is not known under that name; open the address that it printed")
        own_origin = f"{request.scope['scheme']}://{headers['host']}".lower()
        foreign = headers.get("origin", own_origin).lower() != own_origin
        if foreign or headers.get("sec-fetch-site", "none").lower() not in _OWN_FETCH_SITES:
            return page_error_response(
                403, "this view answers its own page only; type its address, or follow no link to it"
            )
        if request.method not in ("GET", "HEAD"):
            return page_error_response(
                405, f"a view can only be looked at: needed GET, got {request.method[:20]}", Allow="GET, HEAD"
            )
        if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
            return page_error_response(413, "a question to a view has no body")
        return None if self._token is None else self._check_token(request)

    def _is_host(self, text: str, request: Request) -> bool:
        match = _HOST_HEADER.fullmatch(text)
        if match is None:
            return False
        reached: Any = request.scope.get("server") or ("",)
        port = int(match[2]) if match[2] else _DEFAULT_PORTS.get(request.scope["scheme"])
        return port == self.port and match[1].strip("[]").lower() in {*self.names, str(reached[0]).lower()}

    def _check_token(self, request: Request) -> Response | None:
        """Accept the token in a header, in the address of the page, or the cookie of a session; otherwise explain."""
        kind, _, bearer = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self._same(bearer.strip(), self._token):
            return None
        given = request.query_params.get("token")
        if request.scope["path"] == "/" and given is not None and self._same(given, self._token):
            answer = RedirectResponse("/", 303)
            secure = request.scope["scheme"] == "https"
            answer.set_cookie(self.cookie, self._session, httponly=True, samesite="strict", secure=secure)
            return answer
        if self._same(request.cookies.get(self.cookie, ""), self._session):
            return None
        words = "this view needs its token: open the address that was printed when it was started"
        return page_error_response(401, words, **{"WWW-Authenticate": "Bearer"})

    @staticmethod
    def _same(given: str, wanted: str | None) -> bool:
        """Compare in constant time, so that timing does not reveal where two texts differ."""
        return secrets.compare_digest(given.encode("utf-8", "replace"), (wanted or "").encode())
