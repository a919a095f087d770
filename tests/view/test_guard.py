"""Who is let in to a view: hosts, origins, tokens and cookies, and the headers of every answer."""

import contextlib
import datetime
import json
import re

import pytest

pytest.importorskip("uvicorn", reason="a view needs Starlette and uvicorn: pip install 'conformesh[view]'")
from conformesh.view import guard
from conformesh.view.server import ViewServer, new_token
from tests.view.served import Page, ask, connect, has_steps, recording, serving, talk, trusting

TOKEN = new_token()
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@pytest.fixture(scope="module")
def view():
    with serving([recording(steps=2)]) as server:
        yield server


@pytest.fixture(scope="module")
def closed():
    """A view that asks for a token."""
    with serving([recording(steps=2)], token=TOKEN) as server:
        yield server


def assert_guarded(headers):
    """The headers are there, once, and none that would let other pages in."""
    for name, value in HEADERS.items():
        assert headers.get_all(name) == [value]
    assert not [name for name in headers if name.lower().startswith("access-control")]
    assert "server" not in {name.lower() for name in headers}


def with_port(text, server):
    return text if text is None else text.replace("PORT", str(server.port))


# --- hosts and origins ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1:PORT", "localhost:PORT", "LOCALHOST:PORT", "[::1]:PORT"])
def test_it_answers_to_its_own_names(view, host):
    assert ask(view, "/health", headers={"Host": with_port(host, view)})[0] == 200


@pytest.mark.parametrize(
    "host",
    [
        "example.org:PORT",  # a name of somebody else's that leads here
        "127.0.0.1.example.org:PORT",
        "localhost.example.org:PORT",
        "user@localhost:PORT",
        "localhost:PORT:PORT",
        "localhost",  # another port
        "localhost:1",
        "localhost:99999999",
        "localhost:PORT/",
        "[::1",
        "",
        "0.0.0.0:PORT",
        "[::ffff:127.0.0.1]:PORT",
        "2130706433:PORT",
    ],
)
def test_it_answers_to_no_other_name(view, host):
    status, headers, body = ask(view, "/", headers={"Host": with_port(host, view)})
    assert status == 403
    assert "not known under that name" in json.loads(body)["error"]
    assert_guarded(headers)


def test_a_request_without_a_host_or_with_two_is_none(view):
    assert talk(view, b"GET / HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 403")
    assert talk(view, b"GET / HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 400")
    twice = b"GET / HTTP/1.1\r\nHost: localhost:%d\r\nHost: example.org\r\n\r\n" % view.port
    assert talk(view, twice).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize(
    ("given", "status"),
    [
        ({}, 200),
        ({"Origin": "http://127.0.0.1:PORT"}, 200),
        ({"Origin": "http://127.0.0.1:PORT", "Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),
        ({"Origin": "http://localhost:PORT"}, 403),  # another origin, for a browser
        ({"Origin": "https://127.0.0.1:PORT"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Origin": "http://example.org"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": ""}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),  # another port of this machine is the same site
        ({"Sec-Fetch-Site": "strange"}, 403),
        ({"Origin": "http://127.0.0.1:PORT", "Sec-Fetch-Site": "cross-site"}, 403),
    ],
)
@pytest.mark.parametrize("path", ["/", "/page/view.js", "/trace.json", "/device/0/0", "/health"])
def test_other_pages_are_kept_out(view, given, status, path):
    got, headers, body = ask(view, path, headers={name: with_port(value, view) for name, value in given.items()})
    assert got == (404 if status == 200 and path.startswith("/device") else status)
    assert_guarded(headers)
    if status == 403:
        assert "this view answers its own page only" in json.loads(body)["error"]


def test_other_pages_are_kept_out_of_events(view):
    with Page(view, {"Origin": "http://example.org"}) as page:
        assert page.answer.status == 403
    with Page(view, {"Sec-Fetch-Site": "cross-site"}) as page:
        assert page.answer.status == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "CONNECT", "TRACE", "BREW"])
def test_nothing_can_be_done_but_look(view, method):
    for path in ("/", "/events", "/health", "/nothing"):
        status, headers, body = ask(view, path, method)
        assert (status, headers["Allow"]) == (405, "GET, HEAD")
        assert f"needed GET, got {method}" in json.loads(body)["error"]
        assert_guarded(headers)


def test_a_question_has_no_body(view):
    for more in ({"Content-Length": "5"}, {"Transfer-Encoding": "chunked"}):
        status, headers, _ = ask(view, "/", headers=more)
        assert status == 413
        assert_guarded(headers)


def test_every_answer_has_the_headers(view, monkeypatch):
    for path in ("/", "/page/view.css", "/trace.json", "/report.html", "/health", "/device/0/0", "/nothing"):
        assert_guarded(ask(view, path)[1])
    with Page(view) as page:
        assert_guarded(page.answer.headers)
    raw = talk(view, b"nonsense\r\n\r\n").decode()
    assert raw.startswith("HTTP/1.1 400")
    for name, value in HEADERS.items():
        assert f"\r\n{name.lower()}: {value}\r\n".lower() in raw.lower()


def test_what_fails_is_said_without_what_is_inside(caplog):
    def broken():
        raise RuntimeError("a secret")

    with serving(broken) as server:
        status, headers, body = ask(server, "/trace.json")
        assert status == 500
        assert json.loads(body)["error"] == "unexpected RuntimeError; the log of the view has the details"
        assert_guarded(headers)
    assert "a secret" in caplog.text


# --- tokens -----------------------------------------------------------------------------------------------------------


def test_a_token_is_long_and_new():
    assert len(new_token()) == 43  # 32 bytes
    assert new_token() != new_token()


def test_without_the_token_nothing_is_told(closed):
    for path in ("/", "/page/view.js", "/events", "/device/0/0", "/trace.json", "/report.html", "/health", "/nothing"):
        status, headers, body = ask(closed, path)
        assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")
        assert "this view needs its token" in json.loads(body)["error"]
        assert TOKEN not in body.decode()
        assert_guarded(headers)


WRONG = [TOKEN[:-1], TOKEN + "x", TOKEN.swapcase(), "", "é", new_token()]


@pytest.mark.parametrize("wrong", WRONG, ids=range(len(WRONG)))
def test_a_wrong_token_is_none(closed, wrong):
    header = wrong.encode().decode("latin-1")
    assert ask(closed, "/health", headers={"Authorization": f"Bearer {header}"})[0] == 401
    assert ask(closed, "/health", headers={"Cookie": f"conformesh-view-{closed.port}={header}"})[0] == 401
    assert ask(closed, "/?token=" + wrong.encode().hex() if not wrong.isascii() else f"/?token={wrong}")[0] == 401


def test_the_token_is_taken_from_programs_and_once_from_browsers(closed):
    for word in ("Bearer", "bearer"):
        assert ask(closed, "/health", headers={"Authorization": f"{word} {TOKEN}"})[0] == 200
    assert ask(closed, "/health", headers={"Authorization": f"Basic {TOKEN}"})[0] == 401
    assert ask(closed, f"/health?token={TOKEN}")[0] == 401  # only where it is taken away at once
    status, headers, _ = ask(closed, f"/?token={TOKEN}")
    assert (status, headers["Location"]) == (303, "/")
    assert_guarded(headers)


def test_a_browser_gets_a_cookie_that_is_not_the_token(closed):
    cookie = ask(closed, f"/?token={TOKEN}")[1]["Set-Cookie"]
    name, value, rest = re.fullmatch(r"([\w-]+)=([0-9a-f]{64}); (.*)", cookie).groups()
    assert name == f"conformesh-view-{closed.port}"  # a cookie is for all ports of a host
    assert sorted(rest.lower().split("; ")) == ["httponly", "path=/", "samesite=strict"]
    assert TOKEN not in cookie
    for path in ("/", "/page/view.js", "/trace.json", "/health"):
        assert ask(closed, path, headers={"Cookie": f"{name}={value}"})[0] == 200
    assert ask(closed, "/health", headers={"Cookie": f"other={value}"})[0] == 401
    assert ask(closed, "/health", headers={"Authorization": f"Bearer {value}"})[0] == 401
    with Page(closed, {"Cookie": f"{name}={value}"}) as page:
        page.follow(has_steps(2))


def test_a_token_does_not_open_the_door_to_other_pages(closed):
    for given in ({"Origin": "http://example.org"}, {"Host": "example.org"}, {"Sec-Fetch-Site": "cross-site"}):
        assert ask(closed, "/health", headers={"Authorization": f"Bearer {TOKEN}", **given})[0] == 403


def test_tokens_and_cookies_are_compared_in_constant_time(closed, monkeypatch):
    """Both go through `secrets.compare_digest`, and what it says decides."""
    compared = []

    def never(given, wanted):
        compared.append((given, wanted))
        return False

    monkeypatch.setattr(guard.secrets, "compare_digest", never)
    cookie = {"Cookie": f"conformesh-view-{closed.port}=abc"}
    assert ask(closed, f"/?token={TOKEN}", headers={"Authorization": "Bearer wrong", **cookie})[0] == 401
    assert [given for given, _ in compared] == [b"wrong", TOKEN.encode(), b"abc"]
    assert [wanted for _, wanted in compared][:2] == [TOKEN.encode()] * 2


def test_beyond_this_machine_the_address_that_was_reached_is_its_name():
    with serving([recording()], host="0.0.0.0", token=TOKEN) as server:
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        assert ask(server, "/health", headers=bearer)[0] == 200  # as 127.0.0.1
        assert ask(server, "/health", headers={**bearer, "Host": f"0.0.0.0:{server.port}"})[0] == 403
        assert ask(server, "/health", headers={**bearer, "Host": f"192.0.2.7:{server.port}"})[0] == 403
        assert ask(server, "/health")[0] == 401
        assert "0.0.0.0" not in server.url


# --- TLS --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A certificate for this machine, and its key."""
    x509 = pytest.importorskip("cryptography.x509", reason="making a certificate needs cryptography")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    made = x509.CertificateBuilder().issuer_name(name).subject_name(name).public_key(key.public_key())
    made = made.serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(days=1))
    made = made.not_valid_after(now + datetime.timedelta(days=1)).sign(key, hashes.SHA256())
    folder = tmp_path_factory.mktemp("tls")
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "key.pem").write_bytes(key.private_bytes(*form))
    return folder / "cert.pem", folder / "key.pem"


def test_tls(pair):
    cert, key = pair
    with serving([recording()], token=TOKEN, cert=cert, key=key) as server, contextlib.ExitStack() as stack:
        idle = [stack.enter_context(connect(server)) for _ in range(100)]  # that never shake hands
        tls = trusting(cert)
        status, headers, _ = ask(server, f"/?token={TOKEN}", tls=tls)
        assert status == 303
        assert "; secure" in headers["Set-Cookie"].lower()
        own = {"Authorization": f"Bearer {TOKEN}", "Origin": f"https://127.0.0.1:{server.port}"}
        assert ask(server, "/health", headers=own, tls=tls)[0] == 200
        foreign = {**own, "Origin": f"http://127.0.0.1:{server.port}"}
        assert ask(server, "/health", headers=foreign, tls=tls)[0] == 403
        assert server.url.startswith("https://127.0.0.1:")
        assert len(idle) == 100


def test_a_certificate_needs_its_key(pair, tmp_path):
    with pytest.raises(ValueError, match="TLS needs both a certificate and its key"):
        ViewServer([], cert=pair[0])
    (tmp_path / "no.pem").write_text("nothing")
    with pytest.raises(ValueError, match="cannot be used as certificate and key"):
        ViewServer([], port=0, cert=tmp_path / "no.pem", key=pair[1]).start()
