"""Entries signed by the keys of certificates: whose count, and whose do not."""

from datetime import UTC, datetime, timedelta

import pytest

pytest.importorskip("cryptography", reason="certificates need the extra mesh")

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding

from conformesh import Network
from conformesh.mesh.config.certificates import load_certificate, load_key
from conformesh.mesh.config.device_toml import read_device
from conformesh.mesh.config.folders import init_mesh, reissue_device, renew_device
from conformesh.mesh.config.local_scores import LocalScores
from conformesh.mesh.config.seal import CertificateSeal
from conformesh.mesh.config.signing import CURVE_ORDER
from conformesh.mesh.node.calibration_run import make_device
from conformesh.peer import frames
from conformesh.peer.entries import PROOF, attach_signature, entry_key, pack_entries, split_signature
from conformesh.peer.frames import ENTRIES, Frame
from conformesh.peer.journal import MemoryJournal
from conformesh.protocols.histogram_reports import Report, encode_reports

TEXT = b"what a device says"


@pytest.fixture
def root(tmp_path):
    init_mesh(tmp_path / "mesh", Network.chain(3), mode="asynchronous", method="r-dcp")
    return tmp_path / "mesh"


def seal_of(root, name, **how):
    return CertificateSeal(read_device(root / name), **how)


def test_what_a_device_signs_counts_as_its_own_everywhere_and_as_nobody_elses(root):
    proof = seal_of(root, "device-01").sign(TEXT)
    for other in ("device-00", "device-01", "device-02"):
        seal = seal_of(root, other)
        assert [seal.genuine(row, TEXT, proof) for row in range(3)] == [False, True, False]
        assert not seal.genuine(1, TEXT + b"!", proof)


def test_bytes_that_were_changed_prove_nothing(root):
    seal = seal_of(root, "device-00")
    proof = seal_of(root, "device-01").sign(TEXT)
    certificate, signature = split_signature(proof)
    step = max(len(proof) // 60, 1)
    for at in range(0, len(proof), step):
        changed = proof[:at] + bytes([proof[at] ^ 1]) + proof[at + 1 :]
        assert not seal.genuine(1, TEXT, changed)
    for nothing in (
        b"",
        certificate,
        attach_signature(b"", signature),
        attach_signature(certificate, b""),
        attach_signature(certificate[:-1], signature),
    ):
        assert not seal.genuine(1, TEXT, nothing)


def test_a_certificate_of_another_mesh_proves_nothing(root, tmp_path):
    init_mesh(tmp_path / "other", Network.chain(3), mode="asynchronous", method="r-dcp")
    proof = seal_of(tmp_path / "other", "device-01").sign(TEXT)
    assert not seal_of(root, "device-00").genuine(1, TEXT, proof)


def test_a_certificate_that_is_out_of_time_proves_nothing(root):
    proof = seal_of(root, "device-01").sign(TEXT)
    late = datetime.now(UTC) + timedelta(days=366)
    assert not seal_of(root, "device-00", clock=lambda: late).genuine(1, TEXT, proof)


def test_a_renewed_certificate_counts_beside_the_old_one_until_that_is_revoked_by_its_fingerprint(root):
    stolen = seal_of(root, "device-01")
    before = stolen.sign(TEXT)
    renew_device(root, "device-01")
    after = seal_of(root, "device-01").sign(TEXT)
    seal = seal_of(root, "device-00")
    assert seal.genuine(1, TEXT, before)
    assert seal.genuine(1, TEXT, after)
    reissue_device(root, "device-01")
    now, seal = seal_of(root, "device-01").sign(TEXT), seal_of(root, "device-00")
    assert [seal.genuine(1, TEXT, proof) for proof in (before, after, now)] == [False, False, True]
    assert not seal.genuine(1, b"later", stolen.sign(b"later"))


def test_an_insecure_mesh_has_nothing_to_sign_with(tmp_path):
    with pytest.raises(ValueError, match="signs what devices say"):
        init_mesh(tmp_path / "mesh", Network.chain(3), mode="asynchronous", method="r-dcp", insecure=True)


# --- devices with real keys: ECDSA signatures of one text differ from each other --------------------------------------


def device_of(root, name="device-00"):
    """A device of r-dcp without rounds, with its neighbours in our hands."""
    config = read_device(root / name)
    device = make_device(config, LocalScores(np.linspace(0, 1, 30)), MemoryJournal())
    device.start(0.0)
    for neighbour in [*device.exchange.timers]:
        hear(device, neighbour, 0, [])  # neighbours that have nothing of its own: it may speak
    assert device.survivors == (config.row,)
    return device


def hear(device, sender, keys, entries):
    body = pack_entries(device.network.devices, keys, 0, entries)
    device.receive(frames.encode_frame(Frame(ENTRIES, device.run, sender, 0, 0, body)), sender, 1.0)


def signed_at_random(device, root, name, key, text):
    """Return an entry with a signature of its own, as any ECDSA library makes it."""
    folder = read_device(root / name)
    certificate = load_certificate(folder.path("cert")).public_bytes(Encoding.DER)
    signature = load_key(folder.path("key")).sign(device.store.signed_text(key, text), ec.ECDSA(SHA256()))
    return attach_signature(attach_signature(certificate, signature), text)


def mirrored(entry):
    """Return the entry with the other signature that the curve allows, which anybody can make without the key."""
    proof, text = split_signature(entry)
    certificate, signature = split_signature(proof)
    r, s = decode_dss_signature(signature)
    return attach_signature(attach_signature(certificate, encode_dss_signature(r, CURVE_ORDER - s)), text)


def report():
    return encode_reports([Report.of(np.linspace(0, 1, 20), 0.0, 1.0, 16)])


def same_text_twice(device, root, how):
    key = entry_key(1, 0)
    first = signed_at_random(device, root, "device-01", key, report())
    second = mirrored(first) if how == "mirrored" else signed_at_random(device, root, "device-01", key, report())
    assert first != second
    return key, first, second


@pytest.mark.parametrize("how", ["signed twice", "mirrored"])
def test_two_signatures_of_one_text_prove_nothing(root, how):
    """Neither when both are heard, nor as a proof that somebody hands over."""
    device = device_of(root)
    key, first, second = same_text_twice(device, root, how)
    hear(device, 1, 0, [(entry_key(1, PROOF), b"\0" + attach_signature(*sorted((first, second))))])
    assert device.counts.refused == {"a proof of two entries that are the same": 1}
    hear(device, 1, 0, [(key, first)])
    hear(device, 1, 0, [(key, second)])
    assert device.byzantine == ()
    assert device.survivors == (0, 1)


def test_two_texts_with_real_signatures_are_a_proof_that_others_accept(root):
    device, other = device_of(root), device_of(root, "device-02")
    key = entry_key(1, 0)
    other_report = encode_reports([Report.of(np.zeros(20), 0.0, 1.0, 16)])
    for text in (report(), other_report):
        hear(device, 1, 0, [(key, signed_at_random(device, root, "device-01", key, text))])
    assert device.byzantine == (1,)
    hear(other, 1, 0, [(entry_key(1, PROOF), device.store.entries[entry_key(1, PROOF)])])
    assert other.byzantine == (1,)


def test_signed_nonsense_counts_among_the_byzantine_devices(root):
    """What nobody could say, with a good signature, is a proof: it is spent from f, and left out of the threshold."""
    device = device_of(root)
    key = entry_key(1, 0)
    hear(device, 1, 0, [(key, signed_at_random(device, root, "device-01", key, b"nonsense"))])
    hear(device, 1, 0, [(entry_key(2, 0), signed_at_random(device, root, "device-02", entry_key(2, 0), report()))])
    assert device.survivors == (0, 1, 2)  # before anybody has looked into it
    notes = device.result.notes
    assert any("devices {device-01} are proven to lie" in note for note in notes), notes
    assert device.survivors == (0, 2)
    late = device_of(root)  # two such devices are more than f = 1: nothing holds any more, and the device says so
    for row in (1, 2):
        entry = signed_at_random(late, root, f"device-0{row}", entry_key(row, 0), b"nonsense")
        hear(late, 1, 0, [(entry_key(row, 0), entry)])
    assert late.result is None
    assert "devices {device-01, device-02} are proven to lie and byzantine=1" in str(late.error)
