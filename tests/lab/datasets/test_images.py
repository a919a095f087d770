"""Image files in the formats of their authors, and how they come from the network: only the loopback here."""

from __future__ import annotations

import hashlib
import http.server
import pickle
import threading
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from conformesh.lab.datasets import datasets
from conformesh.lab.datasets.cifar import read_cifar
from conformesh.lab.datasets.datasets import DATASETS, load_images
from conformesh.lab.datasets.downloads import PublishedFile, download_file, download_folder
from conformesh.lab.datasets.images import ImageData
from conformesh.lab.datasets.medmnist import read_medmnist
from conformesh.lab.datasets.pickles import read_pickled
from tests.lab.image_files import (
    cifar_rows,
    images_and_labels,
    packed,
    pickled_by_python_2,
    write_cifar10,
    write_cifar100,
    write_medmnist,
)


def assert_holds(data: ImageData, train, held, classes):
    for images, labels, (expected, of) in (
        (data.train_images, data.train_labels, train),
        (data.held_images, data.held_labels, held),
    ):
        assert np.array_equal(images, expected)
        assert np.array_equal(labels, of)
        assert images.flags.c_contiguous
        assert labels.dtype == np.int64
    assert data.classes == classes


# --- CIFAR ------------------------------------------------------------------------------------------------------------


def test_cifar_100_from_its_folder_and_from_its_archive(tmp_path):
    parts = write_cifar100(tmp_path)
    folder = tmp_path / "cifar-100-python"
    archive = packed(folder, tmp_path / "cifar-100-python.tar.gz")
    for where in (tmp_path, folder, archive):
        assert_holds(load_images("cifar100", where, download=False), parts["train"], parts["test"], 100)


def test_cifar_10_has_five_batches(tmp_path):
    parts = write_cifar10(tmp_path)
    train = [np.concatenate(both) for both in zip(*[parts[f"data_batch_{i}"] for i in range(1, 6)], strict=True)]
    assert_holds(load_images("cifar10", tmp_path, download=False), train, parts["test_batch"], 10)


def test_a_pickle_of_python_2(tmp_path):
    parts = write_cifar100(tmp_path)
    for name, (images, labels) in parts.items():
        (tmp_path / "cifar-100-python" / name).write_bytes(pickled_by_python_2(cifar_rows(images), labels))
    assert_holds(read_cifar(tmp_path / "cifar-100-python", "cifar100"), parts["train"], parts["test"], 100)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_arrays_in_pickles_of_every_protocol(protocol):
    arrays = {"c": np.arange(12, dtype=np.int16).reshape(3, 4), "f": np.asfortranarray(np.ones((2, 3)) * [1, 2, 3])}
    found = read_pickled(pickle.dumps({**arrays, "list": [1, (2, {"a": {3}})]}, protocol), "it")
    assert found["list"] == [1, (2, {"a": {3}})]
    for name, array in arrays.items():
        assert np.array_equal(found[name], array)
        assert found[name].dtype == array.dtype


class Harm:
    """What a pickle can do while it is loaded."""

    def __reduce__(self):
        return (Path.touch, (Path("harm"),))


def test_a_pickle_that_runs_something_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_cifar100(tmp_path)
    (tmp_path / "cifar-100-python" / "test").write_bytes(pickle.dumps({b"data": Harm()}))
    with pytest.raises(ValueError, match=r"test: its pickle asks for .*, which is no data and was not loaded"):
        load_images("cifar100", tmp_path)
    assert not Path("harm").exists()
    with pytest.raises(ValueError, match=r"asks for os\.system|asks for posix\.system|asks for nt\.system"):
        read_pickled(b"\x80\x02cos\nsystem\nU\x04true\x85R.", "it")
    for words in (b"cbuiltins\neval\nU\x011\x85R.", b"cnumpy\nload\nU\x011\x85R.", b"cnumpy\nndarray.dump\n."):
        with pytest.raises(ValueError, match="which is no data"):
            read_pickled(b"\x80\x04" + words, "it")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "cannot be read as a pickled dictionary"),
        (pickle.dumps({b"data": np.arange(99)})[:-40], "cannot be read as a pickled dictionary"),
        (pickle.dumps({b"data": np.array([{}])}), "an array must"),
        (pickle.dumps({b"data": np.array(["text"])}), "an array must hold numbers, got dtype 'U4'"),
        (b"\x80\x02}(U\x04datacnumpy.core.multiarray\n_reconstruct\n)Ru.", "cannot be read as a pickled dictionary"),
        (pickle.dumps([1]), "needs a pickled dictionary, got list"),
    ],
)
def test_other_pickles(data, words):
    with pytest.raises(ValueError, match=f"^it: .*{words}"):
        read_pickled(data, "it")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({b"fine_labels": [1]}, "needs 'data', found 'fine_labels'"),
        ({b"data": np.zeros((1, 3072), np.uint8), b"labels": [1]}, "needs 'fine_labels', found 'data', 'labels'"),
        ({b"data": np.zeros((1, 9), np.uint8), b"fine_labels": [1]}, r"must be uint8 of shape \(images, 3072\), got"),
        ({b"data": [1], b"fine_labels": [1]}, "'data' must be uint8 .* got list"),
        ({b"data": np.zeros((2, 3072), np.uint8), b"fine_labels": [1]}, "each needs one label, got 2 images"),
        ({b"data": np.zeros((1, 3072), np.uint8), b"fine_labels": [100]}, "labels must lie between 0 and 99, got 100"),
        ({b"data": np.zeros((1, 3072), np.uint8), b"fine_labels": [0.5]}, "needs one class per image, an integer"),
    ],
)
def test_cifar_with_something_else_inside(tmp_path, content, words):
    write_cifar100(tmp_path)
    (tmp_path / "cifar-100-python" / "test").write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(ValueError, match=words):
        load_images("cifar100", tmp_path)


def test_cifar_that_is_not_whole(tmp_path):
    write_cifar100(tmp_path)
    folder = tmp_path / "cifar-100-python"
    archive = packed(folder, tmp_path / "a.tar.gz")
    (tmp_path / "half.tar.gz").write_bytes(archive.read_bytes()[: archive.stat().st_size // 2])
    with pytest.raises(ValueError, match=r"half\.tar\.gz: cannot be read as \.tar\.gz: .*; download it again"):
        load_images("cifar100", tmp_path / "half.tar.gz")
    with pytest.raises(ValueError, match="data_batch_1 is missing; is it another data set"):
        load_images("cifar10", archive)
    (folder / "train").unlink()
    with pytest.raises(ValueError, match="needs the files train, test, train is missing"):
        load_images("cifar100", tmp_path)


# --- MedMNIST ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grey", [False, True])
def test_medmnist_holds_out_what_is_asked(tmp_path, grey):
    path = tmp_path / "pathmnist.npz"
    parts = write_medmnist(path, grey)
    both = [np.concatenate(pair) for pair in zip(parts["val"], parts["test"], strict=True)]
    for held, expected in (("test", parts["test"]), ("val", parts["val"]), ("val+test", both)):
        assert_holds(load_images("pathmnist", tmp_path, held=held), parts["train"], expected, 3)
        assert_holds(load_images(str(path), held=held), parts["train"], expected, 3)
    assert load_images("pathmnist", path).train_images.shape == (60, 28, 28, 1 if grey else 3)


def test_medmnist_with_something_else_inside(tmp_path):
    path = tmp_path / "x.npz"
    images, labels = np.zeros((2, 28, 28), np.uint8), np.zeros((2, 1), np.uint8)
    good = {f"{part}_{what}": of for part in ("train", "test") for what, of in (("images", images), ("labels", labels))}
    for change, words in (
        ({"test_images": np.zeros((2, 28, 28, 28), np.uint8)}, r"x.npz, test_images must be uint8 of shape"),
        ({"train_images": images.astype(float)}, "train_images must be uint8 .* got float64"),
        ({"test_labels": np.zeros((2, 14), np.uint8)}, "several labels for an image cannot be used"),
        ({"test_labels": labels + 1}, "labels must lie between 0 and 0, got 1 to 1"),
        ({"test_images": images[:0], "test_labels": labels[:0]}, "held-out images: at least 1 is needed"),
        ({"test_images": np.zeros((2, 64, 64), np.uint8)}, "must have one size"),
        ({"test_labels": np.array([[{}], [{}]])}, "cannot be read as NPZ without Python objects"),
    ):
        np.savez(path, **{**good, **change})
        with pytest.raises(ValueError, match=words):
            read_medmnist(path)
    np.savez(path, logits=images)
    with pytest.raises(ValueError, match="train_images is missing; found logits"):
        read_medmnist(path)
    for data in (b"PK\x03\x04 half a file", b""):
        path.write_bytes(data)
        with pytest.raises(ValueError, match="cannot be read as NPZ"):
            read_medmnist(path)
    np.save(tmp_path / "one.npz.npy", images)
    with pytest.raises(ValueError, match="train_images is missing; found none"):
        read_medmnist(tmp_path / "one.npz.npy")


def test_names_and_places_that_are_not_there(tmp_path):
    for call, words in (
        (lambda: load_images("cifar-100"), "unknown data set 'cifar-100', did you mean 'cifar100'"),
        (lambda: load_images("cifar100", tmp_path, held="train"), "held must be test, val or val.test, got 'train'"),
        (lambda: load_images(str(tmp_path / "derma.npz")), "derma.npz: no such file"),
        (lambda: load_images("derma.npz", tmp_path), "is a file already"),
        (lambda: load_images("pathmnist", tmp_path / "p.npz"), "p.npz: no such file; name the file of pathmnist"),
        (
            lambda: load_images("cifar100", tmp_path, download=False),
            r"cifar100 is not in .*: needed cifar-100-python\.tar\.gz or its folder cifar-100-python; get it",
        ),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    write_cifar100(tmp_path)
    with pytest.raises(ValueError, match="cifar100 has no validation part: held must be test, got 'val'"):
        load_images("cifar100", tmp_path, held="val")
    images, labels = images_and_labels(2, 2, 0)
    with pytest.raises(ValueError, match="must be uint8 of shape"):
        ImageData(images / 255, labels, images, labels, 2, "it")


# --- downloads --------------------------------------------------------------------------------------------------------


@contextmanager
def served(content: bytes, promised: int | None = None):
    """A server on the loopback that has one file, at /file, and may promise more bytes than it sends."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            if self.path != "/file":
                self.send_error(404)
                return
            self.send_response(200)
            if promised is not None:
                self.send_header("Content-Length", str(promised))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


@pytest.mark.parametrize("requirement", [True, False])
def test_a_file_arrives_and_is_told_about(tmp_path, monkeypatch, requirement):
    monkeypatch.setattr("conformesh.lab.datasets.downloads.DOWNLOAD_CHUNK", 1000)
    content, seen = bytes(range(250)) * 10, []
    with served(content, len(content) if requirement else None) as url:
        path = download_file(
            PublishedFile("a.bin", f"{url}/file", md5(content)), tmp_path / "new", lambda *what: seen.append(what)
        )
    assert path.read_bytes() == content
    assert seen[-1] == (2500, 2500 if requirement else None)
    assert [item.name for item in path.parent.iterdir()] == ["a.bin"]


def test_what_goes_wrong_leaves_the_folder_as_it_was(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"earlier")
    with served(b"half", promised=8) as url:
        for at, words in (
            ("file", r"could not be downloaded \(the connection ended after 4 of 8 bytes\); try again, or get http"),
            ("other", r"could not be downloaded \(Not Found\)"),
        ):
            with pytest.raises(ConnectionError, match=words):
                download_file(PublishedFile("a.bin", f"{url}/{at}", None), tmp_path)
    with pytest.raises(ConnectionError, match=r"refused.*put it there as .*a\.bin"):
        download_file(PublishedFile("a.bin", f"{url}/file", None), tmp_path)
    with served(b"whole", promised=5) as url, pytest.raises(ConnectionError, match=f"needed MD5 0, .*{md5(b'whole')}"):
        download_file(PublishedFile("a.bin", f"{url}/file", "0"), tmp_path)

    def interrupt(done, total):
        raise KeyboardInterrupt

    with served(b"whole", promised=5) as url, pytest.raises(KeyboardInterrupt):
        download_file(PublishedFile("a.bin", f"{url}/file", None), tmp_path, interrupt)
    assert [(item.name, item.read_bytes()) for item in tmp_path.iterdir()] == [("a.bin", b"earlier")]


def test_a_data_set_is_downloaded_once(tmp_path, monkeypatch):
    parts = write_cifar100(tmp_path / "there")
    archive = packed(tmp_path / "there" / "cifar-100-python", tmp_path / "there" / "x.tar.gz")
    source = PublishedFile("cifar-100-python.tar.gz", archive.as_uri(), md5(archive.read_bytes()))
    monkeypatch.setitem(datasets.DATASETS, "cifar100", replace(DATASETS["cifar100"], source=source))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert_holds(load_images("cifar100"), parts["train"], parts["test"], 100)
    archive.unlink()
    assert_holds(load_images("cifar100"), parts["train"], parts["test"], 100)
    assert [*download_folder().iterdir()] == [tmp_path / "cache" / "conformesh" / "cifar-100-python.tar.gz"]


def test_the_cache_is_in_the_home_of_the_user(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert download_folder() == tmp_path / ".cache" / "conformesh"


def test_the_published_files():
    """What the real sources are; nothing is fetched here."""
    for name, entry in DATASETS.items():
        assert entry.source.url.startswith("https://"), name
        assert len(entry.source.md5) == 32
        assert entry.source.file in entry.source.url
