"""Rosters as documents: nothing but the exact signed bytes is accepted, and what was in force once is never undone."""

import errno
import json
import shutil
import subprocess
from dataclasses import replace

import pytest

from conformesh import Network
from conformesh.files.atomic_writes import write_file
from conformesh.mesh.config.certificate_names import ACCEPTED_NUMBERS, accepted_names, why_not_accepted
from conformesh.mesh.config.device_toml import device_text, read_device
from conformesh.mesh.config.roster import (
    EarlierRoster,
    Revoked,
    Roster,
    canonical_json,
    read_roster_document,
    read_roster_file,
)

pytest.importorskip("cryptography", reason="certificates need the extra `mesh`")
from conformesh.mesh.config.certificates import issued_certificates, make_authority, read_certificate
from conformesh.mesh.config.folders import (
    add_device,
    compare_agreements,
    device_folders,
    init_mesh,
    reissue_device,
    renew_device,
    revoke_device,
)
from conformesh.mesh.config.key_pair import check_key_pair
from conformesh.mesh.config.signing import CURVE_ORDER, sign_text, signed_document, verify_document
from conformesh.mesh.node import membership
from conformesh.mesh.node.file_watch import CertificateWatch
from conformesh.mesh.node.membership import NodeRoster, put_roster_into_folder


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("made") / "m"
    init_mesh(root, Network.complete(4), sizes={"2": 500})
    return root


@pytest.fixture
def root(made, tmp_path):
    shutil.copytree(made, tmp_path / "m")
    return tmp_path / "m"


def document(root):
    return read_roster_file(root)


# --- documents --------------------------------------------------------------------------------------------------------


def test_a_new_mesh_has_roster_1_everywhere(made):
    data = (made / "roster.json").read_bytes()
    found = read_roster_document(data)
    assert (found.roster.number, found.roster.settled, found.roster.earlier) == (1, 1, ())
    assert found.roster.sizes == {"device-02": 500}
    assert found.bytes() == data
    assert {(folder / "roster.json").read_bytes() for folder in device_folders(made)} == {data}
    verify_document(found, made / "device-01" / "ca.pem")
    assert "device-01" not in device_text(read_device(made / "device-00")).replace("# Device device-00", "")


def accepted(data, ca):
    try:
        verify_document(read_roster_document(data), ca)
    except ValueError:
        return False
    return True


def test_no_document_with_another_byte_is_accepted(made):
    """Every byte with one bit or all of it turned over; cut short; longer; and the same JSON in other words."""
    data, ca = (made / "roster.json").read_bytes(), made / "ca" / "ca.pem"
    assert accepted(data, ca)
    for at in range(len(data)):
        for mask in (1 << at % 8, 0xFF, 0x20):
            assert not accepted(data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :], ca), (at, mask)
    for other in (
        data[:-1],
        data + b"\n",
        b" " + data,
        json.dumps(json.loads(data)).encode(),
        b"",
        b"null",
        b"[" * 9999,
    ):
        assert not accepted(other, ca)
    words = json.loads(data)
    words["roster"]["format"] = "conformesh-roster/2"
    assert not accepted(canonical_json(words), ca)
    words = json.loads(data)
    words["roster"]["colour"] = "red"
    assert not accepted(canonical_json(words), ca)


def test_the_other_signature_of_the_curve_is_refused(made):
    """With (r, s) also (r, -s) verifies: there must be one document for each roster."""
    found, ca = document(made), made / "ca" / "ca.pem"
    r, s = found.signature[:64], int(found.signature[64:], 16)
    assert not accepted(replace(found, signature=f"{r}{CURVE_ORDER - s:064x}").bytes(), ca)
    assert not accepted(replace(found, signature="").bytes(), ca)
    assert not accepted(replace(found, signature="0" * 128).bytes(), ca)


def test_another_authority_signs_for_nobody_here(made, tmp_path):
    make_authority(tmp_path / "ca", "ee" * 8)
    forged = signed_document(document(made).roster, tmp_path, insecure=False)
    verify_document(forged, tmp_path / "ca" / "ca.pem")
    with pytest.raises(ValueError, match="its signature is not that of this mesh's authority"):
        verify_document(forged, made / "ca" / "ca.pem")
    with pytest.raises(ValueError, match="cannot read the certificate"):
        verify_document(forged, tmp_path / "nowhere.pem")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"number": -1}, "the number of a roster lies between 0"),
        ({"settled": 3}, "needs the devices of every roster in between"),
        ({"number": 3}, "needs the devices of every roster in between, got those of \\[\\]"),
        ({"number": 3, "earlier": (EarlierRoster(2, ("a",)),)}, "got those of \\[2\\]"),
        ({"lowest": {"x": 2}}, "lowest of {x} cannot be"),
        ({"lowest": {"device-00": 1}}, "lowest of {device-00} cannot be"),
        ({"sizes": {"device-00": -1}}, "sizes of {device-00} cannot be"),
        ({"revoked": (Revoked("x", 1, "ab"),)}, "the fingerprint of a certificate of x is none"),
    ],
)
def test_a_roster_that_cannot_be_is_none(made, change, words):
    with pytest.raises(ValueError, match=words):
        replace(document(made).roster, **change)


# --- changes ----------------------------------------------------------------------------------------------------------


def test_every_change_is_the_next_roster(root):
    old = read_certificate(root / "device-01" / "device.pem")
    add_device(root, "new", ["device-00", "device-02"], size=7)
    assert revoke_device(root, "device-01") == old.serial
    roster = document(root).roster
    assert roster.number == 3
    assert roster.devices == ("device-00", "device-02", "device-03", "new")
    assert roster.revoked == (Revoked("device-01", 1, old.fingerprint),)
    assert roster.sizes == {"device-02": 500, "new": 7}
    everybody = tuple(f"device-0{k}" for k in range(4))
    assert roster.earlier == (EarlierRoster(1, everybody), EarlierRoster(2, (*everybody, "new")))
    verify_document(document(root), root / "new" / "ca.pem")
    assert compare_agreements(device_folders(root)) == {}
    assert {read_device(folder).agreement()["roster"] for folder in device_folders(root)} == {
        f"3, {roster.digest[:16]}"
    }
    add_device(root, "newer", ["new"], settled=2)
    assert [one.number for one in document(root).roster.earlier] == [2, 3]
    with pytest.raises(ValueError, match=r"--settled must be the number of a roster with a .* result, from 2 to 4"):
        add_device(root, "newest", ["new"], settled=5)


def test_a_roster_that_could_never_outvote_an_earlier_one_is_not_made(root):
    """Half of the first four must stay until a later roster has had a result."""
    revoke_device(root, "device-00")
    revoke_device(root, "device-01")
    before = (root / "roster.json").read_bytes()
    with pytest.raises(ValueError, match=r"of the 4 devices of roster 1 only \{device-03\} are in the run, and 2 are"):
        revoke_device(root, "device-02")
    assert (root / "roster.json").read_bytes() == before
    revoke_device(root, "device-02", settled=3)
    assert document(root).roster.devices == ("device-03",)


def test_a_folder_without_a_roster_gets_one_with_the_first_change(root):
    """As an earlier version made it: the map in every device.toml."""
    for folder in device_folders(root):
        config = read_device(folder)
        config = replace(config, roster=None, map=replace(config.map, revoked=("gone", "abcdef")))
        (folder / "device.toml").write_text(device_text(config))
        (folder / "roster.json").unlink()
    (root / "roster.json").unlink()
    (root / "authority.json").unlink()
    config = read_device(root / "device-00")
    assert (config.roster_number, len(config.devices), config.revoked) == (0, 4, ("gone", "abcdef"))
    assert config.agreement()["roster"].startswith("0, ")
    add_device(root, "new", ["device-00"])
    roster = document(root).roster
    assert (roster.number, roster.settled) == (1, 0)
    assert [one.number for one in roster.earlier] == [0]
    assert read_device(root / "device-02").revoked == ("gone", "abcdef")
    with pytest.raises(ValueError, match="was revoked"):
        add_device(root, "gone", ["device-00"])


# --- numbers of certificates ------------------------------------------------------------------------------------------


def test_certificates_are_counted(root):
    folder = root / "device-00"
    first = read_certificate(folder / "device.pem")
    second = renew_device(root, "device-00")
    assert (first.name, second.name, second.number) == ("device-00", "device-00~2", 2)
    assert document(root).roster.number == 1  # a renewed one needs no new roster
    assert [one.fingerprint for one in issued_certificates(root / "ca", "device-00")] == [
        first.fingerprint,
        second.fingerprint,
    ]
    assert check_key_pair(folder / "device.pem", folder / "device.key", folder / "ca.pem", "device-00") == []
    third = reissue_device(root, "device-00")
    roster = document(root).roster
    assert (third.number, roster.number, roster.lowest) == (3, 2, {"device-00": 3})
    assert {one.fingerprint for one in roster.revoked} == {first.fingerprint, second.fingerprint}
    assert read_device(folder).devices == tuple(f"device-0{k}" for k in range(4))
    add_device(root, "device-00-b", ["device-00"])  # a name that begins like another is another
    assert [one.number for one in issued_certificates(root / "ca", "device-00")] == [1, 2, 3]


def test_a_certificate_beyond_those_let_in_makes_a_roster(root):
    for number in range(2, ACCEPTED_NUMBERS + 1):
        assert renew_device(root, "device-00").number == number
    assert document(root).roster.number == 1
    renew_device(root, "device-00")
    assert document(root).roster.lowest == {"device-00": 2}
    assert f"device-00~{ACCEPTED_NUMBERS + 1}" in accepted_names("device-00", 2)


def test_who_is_let_in():
    assert accepted_names("a") == ["a", *(f"a~{k}" for k in range(2, 17))]
    assert accepted_names("a", 3)[::15] == ["a~3", "a~18"]
    assert not any(why_not_accepted(name, "a", 3) for name in accepted_names("a", 3))
    for shown in ("a", "a~2", "a~19", "b~3", "a~03", "a~3~3", "a~", "A~3"):
        assert why_not_accepted(shown, "a", 3), shown


# --- what a node keeps ------------------------------------------------------------------------------------------------


@pytest.fixture
def members(root):
    return NodeRoster(read_device(root / "device-00"))


def later(root, **changes):
    """The bytes of the roster after the one in a folder, signed."""
    before = document(root).roster
    earlier = (*before.earlier, EarlierRoster(before.number, before.devices))
    roster = replace(before, number=before.number + 1, earlier=earlier, **changes)
    return signed_document(roster, root, insecure=False).bytes()


def test_a_newer_roster_is_in_force_for_ever(root, members):
    members.verify()
    folder, body = root / "device-00", later(root)
    assert members.accept(body) == 2
    assert members.has_newer_roster
    assert (folder / "roster.json").read_bytes() == body
    assert members.accept(body) == 2
    members.adopt_newer_roster()
    assert (members.config.roster_number, members.rosters.number, members.has_newer_roster) == (2, 2, False)
    again = NodeRoster(read_device(folder))
    again.rosters.raise_floor(2)
    assert NodeRoster(read_device(folder)).rosters.floor == 2
    shutil.copy(root / "roster.json", folder)
    with pytest.raises(ValueError, match=r"was under roster 2 .* before and cannot go back to 1"):
        NodeRoster(read_device(folder))
    (folder / "roster.json").write_bytes(later(root, lowest={"device-01": 2}))
    with pytest.raises(ValueError, match=r"was under roster 2 .* before and cannot go back to 2"):
        NodeRoster(read_device(folder))


def test_a_node_checks_certificates_and_rosters_without_starting_a_process(root, members, monkeypatch):
    """With twenty nodes on two cores, a process for each check drove the load above 100."""

    def refuse(*_, **__):
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess.Popen, "__init__", refuse)
    members.verify()
    watch = CertificateWatch(members.config)
    watch.look()
    assert watch.problem == ""
    assert watch.expires is not None
    assert members.accept(later(root)) == 2


def test_a_signature_is_checked_once(root, members, monkeypatch):
    calls, body = [], later(root)
    monkeypatch.setattr(membership, "verify_document", lambda document, ca: calls.append(document.roster.number))
    members.verify()
    members.verify()
    for _ in range(3):
        members.accept(body)
    assert calls == [1, 2]


def test_what_is_no_newer_roster_of_this_mesh_is_refused(root, members, tmp_path):
    init_mesh(tmp_path / "other", Network.complete(4))
    one, two = document(root), later(root)
    unsigned = replace(read_roster_document(two), signature="").bytes()
    forged = replace(read_roster_document(two), signature=sign_text(b"something else", root / "ca")).bytes()
    same = signed_document(replace(one.roster, lowest={"device-01": 2}), root, insecure=False).bytes()
    alone = signed_document(replace(read_roster_document(two).roster, edges=()), root, insecure=False).bytes()
    refused = {
        "is of mesh": later(tmp_path / "other"),
        "has no signature": unsigned,
        "is not that of this mesh's authority": forged,
        "a roster is JSON": two[:-5],
        "has one form": two + b" ",
        "differs from the roster 1 in force here": same,
        "components": alone,
    }
    for words, body in refused.items():
        with pytest.raises(ValueError, match=words):
            members.accept(body)
        assert not members.has_newer_roster
    members.accept(two)
    with pytest.raises(ValueError, match="roster 1 is older than roster 2"):
        members.accept(one.bytes())


def test_a_file_that_is_refused_is_put_aside(root, members):
    folder = root / "device-00"
    good = (folder / "roster.json").read_bytes()
    (folder / "roster.json").write_text("half of a ros")
    members.look(1.0)
    members.look(2.0)
    assert "a roster is JSON" in members.problem
    assert (folder / "roster.json").read_bytes() == good
    assert (folder / "roster.refused.json").read_text() == "half of a ros"
    assert members.next_submitted() is None
    body = later(root)
    (folder / "roster.json").write_bytes(body)
    members.look(3.0)
    members.look(4.0)
    assert members.next_submitted() == body


def full_for(*names):
    """`write_file`, on a disk that takes none of these files."""

    def write(path, *more):
        if path.name in names:
            raise OSError(errno.ENOSPC, "No space left on device")
        write_file(path, *more)

    return write


@pytest.mark.parametrize("name", ["roster.refused.json", "roster.json"])
def test_a_file_that_is_refused_on_a_full_disk_is_put_aside_later(root, members, monkeypatch, name):
    """Otherwise the next start would refuse it; and the node must not end."""
    folder = root / "device-00"
    good = (folder / "roster.json").read_bytes()
    (folder / "roster.json").write_text("half of a ros")
    with monkeypatch.context() as patch:
        patch.setattr("conformesh.mesh.node.membership.write_file", full_for(name))
        members.look(1.0)
        members.look(2.0)
        assert "a roster is JSON" in members.problem
        assert "No space left on device" in members.problem
        members.problem = ""
        members.look(3.0)
        assert members.problem == ""  # the same words once
    members.look(4.0)
    assert (folder / "roster.json").read_bytes() == good
    assert (folder / "roster.refused.json").read_text() == "half of a ros"


def test_a_roster_whose_state_cannot_be_written_is_in_force_and_the_state_is_written_later(root, members, monkeypatch):
    members.verify()
    folder, body = root / "device-00", later(root)
    with monkeypatch.context() as patch:
        patch.setattr("conformesh.mesh.node.membership.write_file", full_for("roster.state"))
        assert members.accept(body) == 2
    assert members.has_newer_roster
    assert (folder / "roster.json").read_bytes() == body
    assert json.loads((folder / "roster.state").read_text())["number"] == 1
    members.look(1.0)
    assert json.loads((folder / "roster.state").read_text())["number"] == 2


def test_a_device_that_is_removed_knows_it(root):
    folder = root.parent / "device-00"
    shutil.copytree(root / "device-00", folder)
    members = NodeRoster(read_device(folder))
    revoke_device(root, "device-00")
    members.accept((root / "roster.json").read_bytes())
    members.adopt_newer_roster()
    assert members.removed == "device-00 was removed: roster 2 has {device-01, device-02, device-03}"
    with pytest.raises(ValueError, match="device-00 was removed by roster 2 or an earlier one"):
        read_device(folder)


def test_a_roster_is_handed_to_a_folder_at_rest(root):
    folder, body = root / "device-00", later(root)
    assert put_roster_into_folder(body, folder, read_device(folder)) == f"roster 2 is in {folder} now"
    assert put_roster_into_folder(body, folder, read_device(folder)) == "roster 2 is in force there already"
    with pytest.raises(ValueError, match="is older than roster 2"):
        put_roster_into_folder((root / "roster.json").read_bytes(), folder, read_device(folder))


def test_a_mesh_without_certificates_has_rosters_without_a_signature(tmp_path):
    root = tmp_path / "m"
    init_mesh(root, Network.chain(2), insecure=True)
    members = NodeRoster(read_device(root / "device-00"))
    add_device(root, "third", ["device-01"])
    assert document(root).signature == ""
    assert members.accept((root / "roster.json").read_bytes()) == 2


def test_a_roster_is_made_of_what_it_says():
    one = Roster(1, "0123456789abcdef", ("a", "b"), (("a", "b"),), {"a": "h:1", "b": "h:2"})
    assert one.digest == replace(one).digest != replace(one, edges=()).digest
    assert one.lacks(["a"]) == ""
