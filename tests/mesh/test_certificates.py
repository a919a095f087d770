"""Who is who: certificates that other software accepts, and every way in which a pair can be wrong."""

import builtins
import os
import shutil
import stat
from datetime import UTC, datetime, timedelta

import pytest

from conformesh.mesh.config import certificates
from conformesh.mesh.config.certificates import make_authority, read_certificate
from conformesh.mesh.config.key_pair import check_key_pair
from tests.mesh.meshes import sign_device

pytest.importorskip("cryptography", reason="certificates need the extra `mesh`")
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1

PAIR = ("device.pem", "device.key", "ca.pem")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two authorities, with two devices of the first and one of the other."""
    root = tmp_path_factory.mktemp("authorities")
    make_authority(root / "ca", "aa" * 8)
    make_authority(root / "other-ca", "bb" * 8)
    sign_device(root / "ca", root / "a", "a", ["127.0.0.1", "pi.local", "::1"])
    sign_device(root / "ca", root / "b", "b", ["127.0.0.1"])
    sign_device(root / "other-ca", root / "stranger", "a", ["127.0.0.1"])
    return root


@pytest.fixture
def folder(made, tmp_path):
    """A copy of device a's folder, to spoil."""
    shutil.copytree(made / "a", tmp_path / "a")
    return tmp_path / "a"


def problems(folder, name="a", now=None):
    return check_key_pair(*(folder / file for file in PAIR), name, now)


def test_a_certificate_says_who_it_is(made):
    identity = read_certificate(made / "a" / "device.pem")
    assert (identity.name, identity.issuer) == ("a", "conformesh mesh " + "aa" * 8)
    assert identity.hosts == ("127.0.0.1", "pi.local", "::1")
    assert identity.not_after - datetime.now(UTC) > timedelta(days=364)
    serials = {read_certificate(made / name / "device.pem").serial for name in ("a", "b", "stranger")}
    assert len(serials) == 3
    assert read_certificate(made / "ca" / "issued" / "a.pem") == identity


def test_it_has_the_extensions_that_tls_asks_for(made):
    own = x509.load_pem_x509_certificate((made / "a" / "device.pem").read_bytes())
    root = x509.load_pem_x509_certificate((made / "ca" / "ca.pem").read_bytes())

    def of(certificate, kind):
        return certificate.extensions.get_extension_for_class(kind).value

    assert isinstance(own.public_key().curve, SECP256R1)
    assert (of(own, x509.BasicConstraints).ca, of(root, x509.BasicConstraints).ca) == (False, True)
    assert of(own, x509.KeyUsage).digital_signature
    assert not of(own, x509.KeyUsage).key_cert_sign
    assert of(root, x509.KeyUsage).key_cert_sign
    names = x509.ExtendedKeyUsageOID
    assert {*of(own, x509.ExtendedKeyUsage)} == {names.CLIENT_AUTH, names.SERVER_AUTH}
    assert of(own, x509.AuthorityKeyIdentifier).key_identifier == of(root, x509.SubjectKeyIdentifier).digest


def test_a_good_pair_has_no_problem(made):
    assert problems(made / "a") == []


def test_expired_and_not_yet_valid(made):
    now = datetime.now(UTC)
    assert any(
        words.startswith("device.pem expired on") for words in problems(made / "a", now=now + timedelta(days=400))
    )
    late = problems(made / "a", now=now + timedelta(days=4000))
    assert [words.split()[0] for words in late] == ["device.pem", "ca.pem"]
    early = problems(made / "a", now=now - timedelta(days=3))
    assert all("is not valid before" in words and "set the clock" in words for words in early)
    assert len(early) == 2
    assert problems(made / "a", now=now - timedelta(hours=20)) == []  # a clock that is a little late


def test_another_authority(folder, made):
    shutil.copy(made / "other-ca" / "ca.pem", folder / "ca.pem")
    assert problems(folder) == ["device.pem was signed by another authority than ca.pem; both come from one mesh"]


def test_an_authority_of_the_same_name_is_another_authority(folder, tmp_path):
    make_authority(tmp_path / "false", "aa" * 8)
    shutil.copy(tmp_path / "false" / "ca.pem", folder / "ca.pem")
    assert "signed by another authority" in problems(folder)[0]


def test_a_device_is_no_authority(folder, made, tmp_path):
    shutil.copytree(made / "b", tmp_path / "evil")
    (tmp_path / "evil" / "device.pem").rename(tmp_path / "evil" / "ca.pem")
    (tmp_path / "evil" / "device.key").rename(tmp_path / "evil" / "ca.key")
    with pytest.raises(ValueError, match="is no authority's"):
        sign_device(tmp_path / "evil", tmp_path / "c", "c", ["127.0.0.1"])


def test_another_key(folder, made):
    shutil.copy(made / "b" / "device.key", folder / "device.key")
    assert problems(folder) == ["device.key does not match device.pem; copy both from the same folder"]


def test_another_name(made):
    assert problems(made / "a", "b") == ["device.pem names 'a', but this device is 'b'; copy the right folder"]


@pytest.mark.skipif(os.name != "posix", reason="file modes are those of POSIX")
def test_a_key_that_others_can_read(folder):
    (folder / "device.key").chmod(0o640)
    assert problems(folder) == [f"device.key can be read by others; run: chmod 600 {folder / 'device.key'}"]


@pytest.mark.parametrize("file", PAIR)
def test_a_missing_and_a_damaged_file(folder, file):
    secret = (folder / file).read_text()
    (folder / file).write_text(secret.replace("A", "?"))
    (words,) = problems(folder)
    assert "in PEM form" in words
    assert not any(line in words for line in secret.splitlines())
    (folder / file).unlink()
    assert problems(folder) == [f"{file} is missing; copy it from the folder that the authority made"]


@pytest.mark.skipif(os.name != "posix", reason="file modes are those of POSIX")
def test_private_keys_are_never_readable_by_others(tmp_path, monkeypatch):
    """Also not for a moment: every file that is made for a key is made with its final mode, whatever the umask."""
    modes, real = {}, os.open
    monkeypatch.setattr(
        os, "open", lambda path, flags, mode=0o777, **k: modes.update({str(path): mode}) or real(path, flags, mode, **k)
    )
    before = os.umask(0)
    try:
        make_authority(tmp_path / "ca", "cc" * 8)
        sign_device(tmp_path / "ca", tmp_path / "a", "a", ["127.0.0.1"])
    finally:
        os.umask(before)
    assert {mode for path, mode in modes.items() if ".key" in path} == {0o600}
    assert sum(".key" in path for path in modes) == 2
    for path in (tmp_path / "ca" / "ca.key", tmp_path / "a" / "device.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert path.read_text().startswith("-----BEGIN PRIVATE KEY-----")
    assert stat.S_IMODE((tmp_path / "ca").stat().st_mode) == 0o700


def test_a_name_is_given_once_and_may_be_renewed(tmp_path):
    make_authority(tmp_path / "ca", "dd" * 8, days=100)
    first = sign_device(tmp_path / "ca", tmp_path / "a", "a", ["127.0.0.1"])
    assert first.not_after == read_certificate(tmp_path / "ca" / "ca.pem").not_after  # never longer than the authority
    with pytest.raises(ValueError, match=f"'a' has a certificate already \\(serial {first.serial}\\)"):
        sign_device(tmp_path / "ca", tmp_path / "a2", "a", ["127.0.0.1"])
    assert not (tmp_path / "a2").exists()
    assert sign_device(tmp_path / "ca", tmp_path / "a", "a", ["127.0.0.1"], renew=True).serial != first.serial
    assert problems(tmp_path / "a") == []


def test_an_authority_is_made_once(made):
    with pytest.raises(ValueError, match="an authority is made once"):
        make_authority(made / "ca", "aa" * 8)


def test_other_mistakes_of_the_caller(made, tmp_path):
    with pytest.raises(ValueError, match="must be 1 to 58 letters"):
        sign_device(made / "ca", tmp_path, "../x", ["127.0.0.1"])
    with pytest.raises(ValueError, match="needs the host"):
        sign_device(made / "ca", tmp_path, "x", [])
    with pytest.raises(ValueError, match="at least 1 day, got 0"):
        sign_device(made / "ca", tmp_path, "x", ["127.0.0.1"], days=0)
    with pytest.raises(ValueError, match="cannot read the certificate"):
        sign_device(tmp_path / "none", tmp_path, "x", ["127.0.0.1"])
    shutil.copytree(made / "ca", tmp_path / "mixed")
    shutil.copy(made / "other-ca" / "ca.key", tmp_path / "mixed" / "ca.key")
    with pytest.raises(ValueError, match=r"ca\.key does not belong to ca\.pem"):
        sign_device(tmp_path / "mixed", tmp_path, "x", ["127.0.0.1"])


def test_without_the_extra_the_error_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name.startswith("cryptography"):
            raise ImportError("No module named 'cryptography'")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pip install 'conformesh\[mesh\]'"):
        certificates.require_x509()
