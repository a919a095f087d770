"""device.toml: what is written is read back, what is wrong is said, and what must match is comparable."""

import os
import string
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformesh import METHODS, Network
from conformesh.mesh.config.device_toml import Neighbour, device_text, read_device, reload_config, write_device
from conformesh.mesh.config.folders import add_device, init_mesh
from conformesh.mesh.config.local_scores import read_local_scores, scatter_scores
from tests.mesh.meshes import NAMES, config
from tests.strategies import networks

letters = st.text(string.ascii_letters + string.digits, min_size=1, max_size=8)
texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20).filter(str.strip)
seconds = st.floats(1e-6, 1e6)


@st.composite
def configs(draw):
    network = draw(networks(most=6))
    names = draw(
        st.lists(letters.map("d.{}".format), min_size=network.devices, max_size=network.devices, unique_by=str.lower)
    )
    endpoints = {
        name: f"{draw(st.sampled_from(['127.0.0.1', 'pi.local', '[::1]']))}:{7600 + k}" for k, name in enumerate(names)
    }
    options = {
        "e-dcp": {"width": draw(st.integers(1, 9))},
        "h-dcp": {"range": (draw(seconds) * -1, 2.5), "rounding": False},
    }
    method = draw(st.sampled_from([*options]))
    return config(
        name=draw(st.sampled_from(names)),
        devices=tuple(names),
        edges=tuple((names[a], names[b]) for a, b in zip(network.receivers, network.indices, strict=True)),
        endpoints=endpoints,
        method=method,
        options=draw(st.sampled_from([{}, options[method]])),
        alpha=draw(st.sampled_from(["0.1", "0.10", "1e-3", "1/3"])),
        score=draw(st.sampled_from([None, "lac", "raps"])),
        model=draw(st.none() | letters),
        file=draw(texts),
        key=draw(texts),
        patience=draw(seconds),
        retry=draw(seconds),
        on_lost=draw(st.sampled_from(["fail", "continue"])),
        quorum=draw(st.none() | st.integers(len(names) // 2 + 1, len(names))),
        insecure=draw(st.booleans()),
        revoked=tuple(draw(st.lists(texts, max_size=3))),
    )


@settings(max_examples=60)
@given(configs())
def test_what_is_written_is_read_back(tmp_path_factory, given_config):
    folder = tmp_path_factory.getbasetemp() / "round-trip"
    folder.mkdir(exist_ok=True)
    write_device(folder, given_config)
    again = read_device(folder)
    assert again == given_config
    assert again.folder == folder
    assert again.agreement() == given_config.agreement()
    assert device_text(again) == device_text(given_config)


@pytest.mark.parametrize("method", METHODS)
def test_the_defaults_of_every_method_agree_with_themselves_written_out(method):
    plain = config(method=method)
    words = plain.agreement()
    assert words["method"] == method
    chosen = {"seed": 0} if "option seed" in words else {}
    assert config(method=method, options=chosen).agreement() == words


def test_a_device_knows_its_place():
    here = config(edges=(("device-02", "device-01"), ("device-01", "device-00"), ("device-00", "device-01")))
    assert here.row == 1
    assert here.neighbours == (Neighbour("device-00", "127.0.0.1:7600"), Neighbour("device-02", "127.0.0.1:7602"))
    assert here.edges == config().edges  # sorted, each once
    assert here.network.ids == NAMES
    assert list(here.network.degree) == [1, 2, 1]


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        ({"alpha": "0.10"}, set()),
        ({"options": {"prefer": "balanced"}}, set()),  # a default, written out
        ({"name": "device-00", "listen": "0.0.0.0:1", "patience": 1.0, "file": "x.csv"}, set()),
        ({"alpha": "0.2"}, {"alpha"}),
        ({"mixture": "sizes", "rank_rule": "auto"}, set()),
        ({"mixture": "equal"}, {"requirement"}),
        ({"rank_rule": "swap"}, {"requirement"}),
        ({"pac_confidence": "0.95", "time_uniform": False}, {"requirement"}),
        ({"pac_confidence": "0.95", "mixture": "equal"}, {"requirement"}),
        ({"mixture": "given", "shares": dict.fromkeys(NAMES, "1")}, {"requirement", "shares"}),
        ({"options": {"width": 3}}, {"option width"}),
        ({"score": "lac"}, {"score"}),
        ({"model": "abc"}, {"model"}),
        ({"mesh": "f" * 16}, {"mesh"}),
        ({"on_lost": "continue"}, {"on_lost"}),
        ({"quorum": 3}, set()),  # of no account where nobody goes on
        ({"on_lost": "continue", "quorum": 3}, {"on_lost"}),
        ({"insecure": True}, {"links"}),
        ({"edges": (("device-00", "device-01"), ("device-00", "device-02"))}, {"roster"}),
        ({"devices": NAMES[::-1]}, {"roster"}),
    ],
)
def test_the_agreement_holds_what_must_match_and_nothing_else(change, fields):
    one, other = config().agreement(), config(**change).agreement()
    assert {name for name in one if one[name] != other[name]} == fields
    assert all(len(text) < 80 for text in one.values())


def test_whole_numbers_and_decimals_are_the_same_option():
    one, other = (config(method="q-dcp", options={"kappa": kappa}) for kappa in (1000, 1000.0))
    assert one == other
    assert device_text(one) == device_text(other)


# --- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mesh": "XYZ"}, "mesh must be 8 to 64 hexadecimal digits"),
        ({"name": "device-09"}, "name 'device-09' is none of the devices"),
        ({"mixture": "size"}, "unknown mixture 'size', did you mean 'sizes'"),
        ({"mixture": "given"}, "shares by device go with mixture = 'given'"),
        ({"shares": dict.fromkeys(NAMES, "1")}, "shares by device go with mixture = 'given', and with no other"),
        ({"mixture": "given", "shares": {"device-00": "1"}}, "no share is given for device 'device-01'"),
        ({"rank_rule": "goust"}, "unknown rank rule 'goust', did you mean 'ghost'"),
        ({"pac_confidence": "2"}, "pac_confidence must lie strictly between 0 and 1"),
        ({"pac_confidence": "0.95"}, "those of mixture 'sizes' follow the numbers of scores: choose mixture 'equal'"),
        ({"time_uniform": True}, "time_uniform=True needs pac_confidence"),
        (
            {"pac_confidence": "0.95", "mixture": "equal", "mode": "asynchronous"},
            "in asynchronous mode a result is about the devices that have reported so far",
        ),
        (
            {"pac_confidence": "0.95", "mixture": "equal", "on_lost": "continue"},
            "with on_lost 'continue' a lost device changes it; use on_lost 'fail'",
        ),
        (
            {"pac_confidence": "0.95", "mixture": "equal", "method": "p-dcp"},
            "must not reveal how many rows a device has",
        ),
        ({"method": "fcp", "mixture": "equal"}, "'fcp' keeps the guarantee it was published with"),
        ({"listen": "127.0.0.1"}, "listen must be host:port"),
        ({"listen": "127.0.0.1:70000"}, "a port lies between 1 and 65535, got 70000"),
        ({"listen": "300.0.0.1:7600"}, "neither an IP address nor a host name"),
        ({"alpha": "2"}, "alpha must lie strictly between 0 and 1, got 2"),
        ({"alpha": "x"}, "alpha must be a number"),
        ({"method": "e-dpc"}, "did you mean 'e-dcp'"),
        ({"options": {"widht": 3}}, "method 'e-dcp' has no option 'widht'"),
        ({"options": {"width": "3"}}, "width must be a whole number or None, got '3'"),
        ({"options": {"width": True}}, "width must be a whole number or None, got True"),
        ({"options": {"width": 0}}, "width must be at least 1, got 0"),
        ({"score": "lca"}, "did you mean 'lac'"),
        ({"score": "raps", "score_options": {"x": 1}}, "unknown option of score 'raps' 'x'"),
        ({"score_options": {"x": 1}}, "need a score that they belong to"),
        ({"model": "a b"}, "model must be the digest of a model"),
        ({"patience": 0.0}, "patience must be a positive number of seconds, got 0.0"),
        ({"retry": float("inf")}, "retry must be a positive number of seconds, got inf"),
        ({"quorum": 1}, "quorum must be a whole number from 2, more than half of the 3 devices, to 3, got 1"),
        ({"quorum": 4}, "quorum must be a whole number from 2, more than half of the 3 devices, to 3, got 4"),
        ({"quorum": 2.0}, "quorum must be a whole number of devices, got 2.0"),
        ({"quorum": True}, "quorum must be a whole number of devices, got True"),
        ({"on_lost": "ignore"}, "on_lost must be 'fail' or 'continue', got 'ignore'"),
        ({"file": " "}, "scores.file must be the name of a file, got ' '"),
        ({"revoked": ("device-02",)}, "device 'device-02' is revoked and still one of the devices"),
        ({"devices": ("a", "a")}, "device names must differ"),
        ({"devices": ("a", "A"), "name": "a"}, "differ only in upper and lower case"),
        ({"devices": ("a/b",), "name": "a/b"}, "device name 'a/b' must be 1 to 58 letters"),
        ({"devices": ("ca",), "name": "ca"}, "the name of another folder"),
        ({"endpoints": {}}, "endpoints lacks {device-00, device-01, device-02}"),
        ({"endpoints": {"x": "a:1"}}, "endpoints names 'x'"),
        ({"endpoints": dict.fromkeys(NAMES, "nowhere")}, "endpoint of device-00 must be host:port"),
        ({"edges": (("device-00", "x"),)}, "an edge names 'x'"),
        ({"edges": (("device-00", "device-00"),)}, "has an edge to itself"),
        ({"edges": (("device-00", "device-01"),)}, "the network is not connected"),
    ],
)
def test_every_wrong_value_is_an_error_in_words(change, words):
    with pytest.raises(ValueError) as caught:
        config(**change)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('alpha = "0.1"', "alpha = 0.1", "alpha must be text, got 0.1"),
        ("patience = 30.0", 'patience = "30"', "patience must be a number, got '30'"),
        ("patience = 30.0", "patience = true", "patience must be a number, got True"),
        ("insecure = false", "insecure = 0", "insecure must be true or false, got 0"),
        ("patience", "patiense", "unknown key in [timing] 'patiense', did you mean 'patience'?"),
        ('mesh = "0123456789abcdef"', "", "lacks mesh"),
        ('    "device-00",', "    0,", "devices[0] must be text, got 0"),
        ('["device-00", "device-01"]', '["device-00"]', "edges[0] must be a list of 2 entries, got ['device-00']"),
        ('"device-00" = "127.0.0.1:7600"', '"device-00" = 7600', "endpoints[...] must be text, got"),
        ('alpha = "0.1"', 'alpha = "2"', "alpha must lie strictly between 0 and 1"),
        ('on_lost = "fail"', 'on_lost = "ignore"', "on_lost must be 'fail' or 'continue', got 'ignore'"),
        ('on_lost = "fail"', 'on_lost = "fail"\nfolder = "x"', "unknown key in [run] 'folder'"),
        ("mesh =", "mesh", "not valid TOML"),
    ],
)
def test_every_mistake_in_the_file_names_the_file(tmp_path, old, new, words):
    text = device_text(config())
    assert old in text
    (tmp_path / "device.toml").write_text(text.replace(old, new))
    with pytest.raises(ValueError) as caught:
        read_device(tmp_path)
    assert str(tmp_path / "device.toml") in str(caught.value)
    assert words in str(caught.value)


def test_a_folder_without_a_file_and_a_file_that_is_no_text(tmp_path):
    with pytest.raises(ValueError, match=r"has a device\.toml, and this one has none"):
        read_device(tmp_path)
    (tmp_path / "device.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="must be UTF-8 text"):
        read_device(tmp_path)


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    write_device(tmp_path, config())
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="cannot write the file: No space left"):
        write_device(tmp_path, config(alpha="0.2"))
    assert read_device(tmp_path).guarantee.alpha == "0.1"
    assert [path.name for path in tmp_path.iterdir()] == ["device.toml"]


# --- a device's own scores --------------------------------------------------------------------------------------------


def test_scores_are_spread_by_name_or_number(tmp_path):
    folders = init_mesh(tmp_path / "m", Network.chain(3), insecure=True)
    (tmp_path / "s.csv").write_text("device,score\n2,0.1\n0,0.30000000000000004\n2,inf\n")
    assert scatter_scores(tmp_path / "m", tmp_path / "s.csv") == {"device-00": 1, "device-01": 0, "device-02": 2}
    assert [read_local_scores(read_device(f)).values.tolist() for f in folders] == [
        [0.30000000000000004],
        [],
        [0.1, float("inf")],
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("device,score\nx,1\n", "{x} have scores and are none of the devices"),
        ("device,score\n1,1\ndevice-01,1\n", "one device has scores under two names"),
    ],
)
def test_scores_of_strangers_are_not_spread(tmp_path, text, words):
    init_mesh(tmp_path / "m", Network.chain(3), insecure=True)
    (tmp_path / "s.csv").write_text(text)
    with pytest.raises(ValueError) as caught:
        scatter_scores(tmp_path / "m", tmp_path / "s.csv")
    assert words in str(caught.value)
    with pytest.raises(ValueError, match="no folder of a device is in there"):
        scatter_scores(tmp_path / "elsewhere", tmp_path / "s.csv")


def test_own_scores_and_nobody_elses(tmp_path):
    here = replace(config(), folder=tmp_path)
    with pytest.raises(ValueError, match="needs a file with its scores"):
        read_local_scores(here)
    file = tmp_path / "scores.csv"
    for text, found in (("score\n1\n2\n", [1, 2]), ("device,score\n", []), ("score", []), ("device,score\n1,5\n", [5])):
        file.write_text(text)
        assert read_local_scores(here).values.tolist() == found
    for text, words in (("device,score\ndevice-02,1\n", "a device keeps only its own"), ("score\n1\nnan\n", "got NaN")):
        file.write_text(text)
        with pytest.raises(ValueError, match=words):
            read_local_scores(here)


def test_a_reload_changes_what_is_the_devices_own_and_names_the_rest(tmp_path):
    """The map stays that of the roster in force, whatever roster lies in the folder."""
    folder = init_mesh(tmp_path / "m", Network.chain(3), insecure=True)[0]
    now = read_device(folder)
    add_device(tmp_path / "m", "fourth", ["device-02"])
    path = folder / "device.toml"
    text = path.read_text().replace('alpha = "0.1"', 'alpha = "0.2"').replace("patience = 30", "patience = 7")
    path.write_text(text + '[map.endpoints]\ndevice-01 = "10.0.0.1:7000"\n')
    found, later = reload_config(now, read_device(folder))
    assert later == ["guarantee.alpha"]
    assert (found.guarantee.alpha, found.timing.patience, found.devices, found.roster) == (
        "0.1",
        7.0,
        now.devices,
        now.roster,
    )
    assert found.endpoints == {**now.endpoints, "device-01": "10.0.0.1:7000"}
    assert reload_config(now, now) == (now, [])
