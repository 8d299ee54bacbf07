"""Layers of files, and what a step changed."""

import os
import socket
from pathlib import Path

import pytest
from cluster.images.errors import ImageError
from cluster.images.layers import apply_layer, files_of, layer_between, layer_of, state_of


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with a file, a link, a hard link and a folder in it."""
    root = tmp_path / "root"
    (root / "etc" / "deep").mkdir(parents=True)
    (root / "etc" / "deep" / "file").write_text("one")
    (root / "etc" / "name").write_text("two")
    (root / "etc" / "name").chmod(0o640)
    (root / "link").symlink_to("etc/name")
    os.link(root / "etc" / "name", root / "same")
    return root


def test_the_same_files_give_the_same_layer(root, tmp_path):
    """Each build would be another image, and import would begin again."""
    first = layer_of(root, tmp_path / "a.tar", mtime=0)
    os.utime(root / "etc" / "name", (5, 5))
    second = layer_of(root, tmp_path / "b.tar", mtime=0)
    assert first.digest == second.digest


def test_a_layer_holds_kind_mode_and_content(root, tmp_path):
    """A program that may not be run, or a link that became a copy."""
    seen = files_of([layer_of(root, tmp_path / "a.tar").path])

    assert {path: entry.kind for path, entry in seen.items()} == {
        "etc": "folder", "etc/deep": "folder", "etc/deep/file": "file", "etc/name": "file", "link": "link",
        "same": "file",
    }  # fmt: skip
    assert seen["link"].link == "etc/name"
    assert seen["etc/name"].mode == 0o640
    assert seen["same"] == seen["etc/name"]
    assert seen["etc/name"].size == 3


def test_what_a_step_changed_is_a_layer_and_no_more(root, tmp_path):
    """Files that a step removed would be in the image, or the whole base again in each layer."""
    below = layer_of(root, tmp_path / "below.tar")
    before = state_of(root)
    (root / "etc" / "name").write_text("new")
    (root / "etc" / "deep" / "file").unlink()
    (root / "etc" / "deep").rmdir()
    (root / "added").write_text("")
    above = layer_between(root, before, state_of(root), tmp_path / "above.tar")

    assert above is not None
    # Writing a file also changes its second name.
    assert set(files_of([above.path])) == {"etc", "etc/name", "added", "same"}
    whole = files_of([layer_of(root, tmp_path / "whole.tar").path])
    assert files_of([below.path, above.path]) == whole
    unpacked = tmp_path / "unpacked"
    unpacked.mkdir()
    for layer in (below, above):
        apply_layer(layer.path, unpacked)
    assert files_of([layer_of(unpacked, tmp_path / "unpacked.tar").path]) == whole


def test_a_step_that_changed_nothing_has_no_layer(root, tmp_path):
    """An empty layer costs each import."""
    before = state_of(root)
    assert layer_between(root, before, state_of(root), tmp_path / "none.tar") is None


def test_a_layer_with_a_socket_is_refused(tmp_path):
    """No layer can hold one."""
    root = tmp_path / "root"
    root.mkdir()
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(root / "s"))
        with pytest.raises(ImageError, match="/s is neither a file"):
            layer_of(root, tmp_path / "out.tar")
    assert not list(tmp_path.glob("out.tar*"))
