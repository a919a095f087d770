"""Check whether a neighbour answers, and with whose certificate: one TLS connection, given up after two seconds."""

from __future__ import annotations

import hashlib
import socket
import ssl
from typing import Any, NamedTuple

from conformesh.mesh.config.certificate_names import parse_certificate_name, why_not_accepted
from conformesh.mesh.config.checks import Code, ConfigError, Level
from conformesh.mesh.config.device_toml import DeviceConfig, Neighbour
from conformesh.mesh.config.endpoints import parse_endpoint
from conformesh.mesh.config.key_pair import common_name

REACH_TIMEOUT = 2.0  # seconds; a choice: neighbours are tried one after another while a person waits
# Seconds to wait for a refusal: with TLS 1.3 the other side judges our certificate after our handshake is complete.
_LISTENING = 0.4


class _Answer(NamedTuple):
    """How a neighbour answered."""

    level: Level
    words: str
    code: Code = ""


def reach_neighbours(config: DeviceConfig, timeout: float = REACH_TIMEOUT) -> list[ConfigError]:
    """Try every neighbour of a device, from this machine."""
    return [reach_device(config, neighbour, timeout) for neighbour in config.neighbours]


def reach_device(config: DeviceConfig, other: Neighbour, timeout: float = REACH_TIMEOUT) -> ConfigError:
    """Try another device as this one, from this machine."""
    answer = _try_neighbour(config, other, timeout)
    return ConfigError(
        config.name, f"reach {other.name}", answer.level, f"{other.endpoint}: {answer.words}", answer.code
    )


def _try_neighbour(config: DeviceConfig, neighbour: Neighbour, timeout: float) -> _Answer:
    host, port = parse_endpoint(neighbour.endpoint)
    try:
        context = None if config.security.insecure else _context(config)
    except (OSError, ValueError):
        return _Answer("error", "not tried, since the certificate of this device cannot be used")
    try:
        with socket.create_connection((host, port), timeout=timeout) as link:
            if context is None:
                return _Answer("fine", "somebody listens")
            return _handshake(context, link, host, neighbour.name, config)
    except socket.gaierror:
        return _Answer("error", f"host {host!r} is not known here; check the name, or write its address")
    except TimeoutError:
        words = f"nobody listens: no answer in {timeout:g} s; is the machine on, does a firewall drop it?"
        return _Answer("warning", words, "silent")
    except OSError as problem:
        words = f"nobody listens: {problem.strerror or problem}; start the device there"
        return _Answer("warning", words, "silent")


def _context(config: DeviceConfig) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(config.path("ca")))
    context.load_cert_chain(str(config.path("cert")), str(config.path("key")))
    return context


def _handshake(context: ssl.SSLContext, link: socket.socket, host: str, name: str, config: DeviceConfig) -> _Answer:
    try:
        with context.wrap_socket(link, server_hostname=host) as secure:
            shown: Any = secure.getpeercert()
            met, serial = common_name(shown), f"{int(shown['serialNumber'], 16):x}"
            device = parse_certificate_name(met)[0]
            if {device, serial, _fingerprint(secure)} & {*config.revoked}:
                return _Answer("error", f"{met!r} answers there with a revoked certificate (serial {serial}); stop it")
            if device != name:
                return _Answer("error", f"wrong name: {met!r} answers there, not {name!r}; check the endpoints")
            if problem := why_not_accepted(met, name, config.lowest_certificate(name)):
                return _Answer("error", f"its certificate {problem}")
            secure.settimeout(_LISTENING)
            try:
                closed = secure.recv(1) == b""
            except TimeoutError:  # it waits for us to speak: we are let in
                closed = False
            return (
                _Answer("error", "refused our certificate: it closed the link") if closed else _Answer("fine", "fine")
            )
    except OSError as problem:  # of which those of TLS are kinds
        return _Answer("error", _failure_reason(problem, host))


def _fingerprint(link: ssl.SSLSocket) -> str:
    return hashlib.sha256(link.getpeercert(binary_form=True) or b"").hexdigest()


def _failure_reason(problem: OSError, host: str) -> str:
    if isinstance(problem, ssl.SSLCertVerificationError):
        if "mismatch" in problem.verify_message.lower():
            return f"wrong name: its certificate is not for {host}; have it signed again for that host"
        return f"its certificate is not good: {problem.verify_message}"
    if isinstance(problem, TimeoutError):
        return "accepts a connection and then says nothing; is it the right port?"
    if isinstance(problem, ssl.SSLError) and not isinstance(problem, ssl.SSLEOFError):
        reason = (problem.reason or str(problem)).replace("_", " ").lower()
        if "alert" not in reason:
            return f"speaks no TLS ({reason}); is it the right port, and is that device insecure?"
        return f"refused our certificate: {reason}"
    return "refused our certificate: it broke the link off"
