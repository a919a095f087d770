"""Configurations: every wrong key is one line that says where it stands, what was needed, what came."""

import pytest

from conformesh.lab.sweeps.cells import CELL_SOURCES
from conformesh.lab.sweeps.config import RECORDABLE, RECORDED_ON_REQUEST, read_sweep_config

GOOD = {
    "scores": {"source": "synthetic"},
    "networks": [{"topology": "torus", "devices": 12}],
    "methods": [{"name": "e-dcp"}],
}

WRONG = [
    ({"alpha": [0.1]}, "sweep: unknown field 'alpha', did you mean 'alphas'? known: scores, networks"),
    ({"alphas": 0.1}, "sweep: alphas must be a list, got 0.1"),
    ({"alphas": [0.1, 1.5]}, "sweep: alphas: alpha must lie strictly between 0 and 1, got 1.5"),
    ({"alphas": [0.1, 0.1]}, "sweep: alphas must differ, got [0.1, 0.1]"),
    ({"draws": 0}, "sweep: draws must be a whole number, at least 1, got 0"),
    ({"draws": True}, "sweep: draws must be a whole number, got True"),
    ({"draws": "ten"}, "sweep: draws must be a whole number, got 'ten'"),
    ({"seed": -1}, "sweep: seed must be a whole number, at least 0, got -1"),
    ({"record": ["speed"]}, "sweep: record: unknown word 'speed'; known: threshold, rank"),
    ({"batch": 0.5}, "sweep: batch must be a whole number, got 0.5"),
    ({"networks": []}, "sweep: networks must be a list of at least 1 entries, got []"),
    ({"networks": None}, "sweep: networks must be a list, got None"),
    ({"networks": ["torus"]}, "sweep: networks[0] must be an object, got 'torus'"),
    ({"networks": [{"devices": 3}]}, "sweep: networks[0]: needs either a topology or a graph file, got neither"),
    ({"networks": [{"topology": "torus"}]}, "sweep: networks[0]: lacks devices, how many there are"),
    (
        {"networks": [{"topology": "torsu", "devices": 4}]},
        "networks[0]: unknown topology 'torsu', did you mean 'torus'",
    ),
    (
        {"networks": [{"topology": "torus", "device": 4}]},
        "sweep: networks[0]: unknown field 'device', did you mean 'devices'",
    ),
    (
        {"networks": [{"topology": "torus", "devices": [4, 4]}]},
        "networks[0].devices must be a whole number or a list of different ones, got [4, 4]",
    ),
    ({"networks": [{"topology": "torus", "devices": 4, "seeds": 1}]}, "topology 'torus' is not random; leave seeds"),
    ({"networks": [{"graph": "none.txt"}]}, "networks[0].graph: there is no file none.txt; check the path"),
    ({"methods": [{"name": "edcp"}]}, "sweep: methods[0]: unknown method 'edcp', did you mean 'e-dcp'"),
    ({"methods": [{}]}, "sweep: it lacks methods[0].name, a name of METHODS"),
    (
        {"methods": [{"name": "e-dcp", "options": {"bins": 3}}]},
        "method 'e-dcp' has no option 'bins': it belongs to h-dcp",
    ),
    (
        {"methods": [{"name": "h-dcp", "grid": {"bins": 3}}]},
        "sweep: methods[0].grid[...] must be a list, got {'bins': 3}",
    ),
    (
        {"methods": [{"name": "h-dcp", "options": {"bins": 3}, "grid": {"bins": [3]}}]},
        "methods[0]: 'bins' stands in options and in grid; leave one out",
    ),
    ({"methods": [{"name": "wfcp", "options": {"seed": 3}}]}, "the seed of a method follows the draw; set the sweep's"),
    ({"scores": {}}, "sweep: it lacks scores.source, 'file' or 'synthetic' or 'outputs'"),
    (
        {"scores": {"source": "files"}},
        "sweep: scores.source must be 'file' or 'synthetic' or 'outputs', got 'files'",
    ),
    ({"scores": {"source": "file"}}, "sweep: it lacks scores.file, a score file"),
    ({"scores": {"source": "file", "file": "no.csv"}}, "sweep: scores.file: there is no file no.csv; check the path"),
    ({"scores": {"source": "synthetic", "rows": 3}}, "sweep: scores: unknown field 'rows'; known: per_device"),
    (
        {"scores": {"source": "outputs", "score": "cqr"}},
        "score 'cqr' is for regression, model outputs here have labels",
    ),
    ({"scores": {"source": "outputs", "score": "lak"}}, "sweep: scores: unknown score 'lak', did you mean 'lac'"),
    ({"scores": {"source": "outputs", "partition": "device"}}, 'partition = "device" need a file of outputs, got none'),
    ({"scores": {"source": "outputs", "calibration": 0}}, "scores.calibration must be a number, more than 0, got 0"),
]


@pytest.mark.parametrize(("change", "message"), WRONG, ids=[message[:40] for _, message in WRONG])
def test_a_wrong_key_is_named(change, message):
    with pytest.raises(ValueError) as caught:
        read_sweep_config({**GOOD, **change})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", GOOD)
def test_a_missing_table_is_named(key):
    with pytest.raises(ValueError, match=rf"sweep: it lacks {key}, "):
        read_sweep_config({name: value for name, value in GOOD.items() if name != key})


def test_defaults():
    config = read_sweep_config(GOOD)
    assert (config.alphas, config.draws, config.seed, config.record) == (
        *((0.1,), 1, 0),
        tuple(word for word in RECORDABLE if word not in RECORDED_ON_REQUEST),
    )


def test_grids_and_lists_are_laid_out_in_order():
    config = read_sweep_config(
        GOOD
        | {
            "networks": [{"topology": "geometric", "devices": [4, 5], "seeds": [1, 2]}],
            "methods": [{"name": "h-dcp", "grid": {"bins": [10, 20], "rounds": [3]}}, {"name": "cp"}],
        }
    )
    assert [(n.devices, n.seed) for n in config.networks] == [(4, 1), (4, 2), (5, 1), (5, 2)]
    assert [dict(m.options) for m in config.methods] == [{"bins": 10, "rounds": 3}, {"bins": 20, "rounds": 3}, {}]


def test_files_are_found_beside_the_configuration(tmp_path):
    (tmp_path / "s.csv").write_text("device,score\na,1\n")
    tables = 'networks = [{ topology = "chain" }]\nmethods = [{ name = "cp" }]\n'
    (tmp_path / "sweep.toml").write_text('scores = { source = "file", file = "s.csv" }\n' + tables)
    assert read_sweep_config(tmp_path / "sweep.toml").scores["file"] == str(tmp_path / "s.csv")
    with pytest.raises(ValueError, match=r"draws = 2 needs scores\.calibration below 1"):
        read_sweep_config(
            GOOD
            | {
                "scores": {"source": "file", "file": str(tmp_path / "s.csv")},
                "networks": [{"topology": "chain"}],
                "draws": 2,
            }
        )


@pytest.mark.parametrize(("text", "message"), [("a = ", "must be TOML: "), (None, "cannot read the sweep")])
def test_a_file_that_cannot_be_read_is_named(text, message, tmp_path):
    path = tmp_path / "sweep.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ValueError, match=rf"sweep\.toml: {message}"):
        read_sweep_config(path)


def test_deep_lists_are_refused(tmp_path):
    path = tmp_path / "sweep.toml"
    path.write_text("a = " + "[" * 100_000)
    with pytest.raises(ValueError, match=r"sweep\.toml: must be TOML"):
        read_sweep_config(path)


def test_every_pattern_of_deciding_files_still_matches_some():
    """A file that moved would no longer change the key of a finished point, and old rows would be taken for new."""
    from conformesh.lab.sweeps.provenance import digest_package_files

    assert digest_package_files(CELL_SOURCES) != digest_package_files(CELL_SOURCES[1:])
    with pytest.raises(LookupError, match="no file of the package matches 'no/such'"):
        digest_package_files((*CELL_SOURCES, "no/such"))
