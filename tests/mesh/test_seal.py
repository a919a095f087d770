"""Entries signed by the keys of certificates: whose count, and whose do not."""

from datetime import UTC, datetime, timedelta

import pytest

pytest.importorskip("cryptography", reason="certificates need the extra mesh")

from conformesh import Network
from conformesh.mesh.config.device_toml import read_device
from conformesh.mesh.config.folders import init_mesh, reissue_device, renew_device
from conformesh.mesh.config.seal import CertificateSeal
from conformesh.peer.shelf import sealed, unsealed

TEXT = b"what a device says"


@pytest.fixture
def root(tmp_path):
    init_mesh(tmp_path / "mesh", Network.chain(3), mode="anytime", method="r-dcp")
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
    certificate, signature = unsealed(proof)
    step = max(len(proof) // 60, 1)
    for at in range(0, len(proof), step):
        changed = proof[:at] + bytes([proof[at] ^ 1]) + proof[at + 1 :]
        assert not seal.genuine(1, TEXT, changed)
    for nothing in (
        b"",
        certificate,
        sealed(b"", signature),
        sealed(certificate, b""),
        sealed(certificate[:-1], signature),
    ):
        assert not seal.genuine(1, TEXT, nothing)


def test_a_certificate_of_another_mesh_proves_nothing(root, tmp_path):
    init_mesh(tmp_path / "other", Network.chain(3), mode="anytime", method="r-dcp")
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
        init_mesh(tmp_path / "mesh", Network.chain(3), mode="anytime", method="r-dcp", insecure=True)
