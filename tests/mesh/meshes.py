"""Small meshes on disk for the tests of configuration and identity."""

import socket
import ssl
import threading
from contextlib import contextmanager

from conformesh.files.atomic_writes import PRIVATE, write_file
from conformesh.mesh.config import certificates
from conformesh.mesh.config.device_config import DeviceConfig, MeshMap
from conformesh.mesh.config.settings import SECTIONS, OnlineSettings, change_sections

NAMES = ("device-00", "device-01", "device-02")


def config(**changes):
    """The middle of a chain of three."""
    facts = {
        "devices": NAMES,
        "edges": (("device-00", "device-01"), ("device-01", "device-02")),
        "endpoints": {name: f"127.0.0.1:{7600 + k}" for k, name in enumerate(NAMES)},
    }
    facts |= {name: changes.pop(name) for name in (*facts, "revoked") if name in changes}
    whole = {"mesh": "0123456789abcdef", "name": "device-01", "listen": "127.0.0.1:7601"}
    whole |= {name: changes.pop(name) for name in ("mesh", "name", "listen", "folder", "online") if name in changes}
    if isinstance(whole.get("online"), dict):
        whole["online"] = OnlineSettings(**whole["online"])
    defaults = {name: kind() for name, kind in SECTIONS.items() if name != "online"}
    return DeviceConfig(map=MeshMap(**facts), **whole, **change_sections(changes, defaults))


def sign_device(authority, folder, name, hosts, days=365, *, renew=False):
    """Write a new certificate of a device into its folder and into the authority's, as a change of a mesh does."""
    identity, texts = certificates.sign_device(authority, name, hosts, days, renew=renew)
    record = authority / certificates.issued_path(identity.name)
    for path in (folder, record.parent):
        path.mkdir(parents=True, exist_ok=True)
    for file, text in texts.items():
        write_file(folder / file, text, PRIVATE)
    write_file(record, texts[certificates.CERT])
    return identity


@contextmanager
def tls_server(port, folder, ca=None, plain=False):
    """A neighbour that asks for a certificate of `ca` (its own by default) and then waits to be spoken to."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "device.pem", folder / "device.key")
    context.load_verify_locations(ca or folder / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    listener = socket.create_server(("127.0.0.1", port))
    listener.settimeout(0.05)
    done = threading.Event()

    def serve():
        while not done.is_set():
            try:
                link, _ = listener.accept()
            except OSError:
                continue
            with link:
                link.settimeout(2)
                try:
                    if plain:
                        link.recv(1)
                        link.sendall(b"HTTP/1.1 400 what is this\r\n\r\n")
                        continue
                    with context.wrap_socket(link, server_side=True) as secure:
                        secure.recv(1)
                except OSError:
                    continue

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        listener.close()
