"""The archive that a container runtime imports."""

import hashlib
import json
import tarfile
from pathlib import Path

import pytest
from cluster.images.archive import Image, read_archive, settings_of, write_archive
from cluster.images.errors import ImageError
from cluster.images.layers import Layer, layer_of


@pytest.fixture
def images(tmp_path: Path) -> list[Image]:
    """Two images on one base."""
    layers = {}
    for name in ("base", "first", "second"):
        root = tmp_path / name
        root.mkdir()
        (root / name).write_text(name)
        layers[name] = layer_of(root, tmp_path / f"{name}.tar", mtime=0)
    return [
        Image("first:1", {"User": "65532:65532", "Labels": {"version": ""}}, (layers["base"], layers["first"])),
        Image("localhost/second:1", {"Env": ["PATH=/"]}, (layers["base"], layers["second"])),
    ]


def test_an_archive_is_what_docker_save_writes(images, tmp_path):
    """A runtime would refuse it, or unpack another layer than the image names."""
    out = tmp_path / "out.tar"
    write_archive(images, out)

    with tarfile.open(out) as archive:
        names = archive.getnames()
        content = {name: archive.extractfile(name).read() for name in names}
    manifest = json.loads(content["manifest.json"])
    assert [each["RepoTags"] for each in manifest] == [["first:1"], ["localhost/second:1"]]
    for each in manifest:
        assert each["Config"] == f"{hashlib.sha256(content[each['Config']]).hexdigest()}.json"
        record = json.loads(content[each["Config"]])
        digests = [f"sha256:{hashlib.sha256(content[layer]).hexdigest()}" for layer in each["Layers"]]
        assert record["rootfs"] == {"type": "layers", "diff_ids": digests}
        assert len(record["history"]) == len(digests)
        assert record["os"] == "linux"
        assert record["architecture"]


def test_a_shared_layer_is_in_an_archive_once(images, tmp_path):
    """Import would take as long as for six bases."""
    write_archive(images, tmp_path / "out.tar")

    with tarfile.open(tmp_path / "out.tar") as archive:
        names = archive.getnames()
    assert len(names) == len(set(names))
    assert len([name for name in names if name.endswith(".tar")]) == 3


def test_the_same_images_give_the_same_archive(images, tmp_path):
    """A runtime would import again what it has."""
    write_archive(images, tmp_path / "a.tar")
    write_archive(images, tmp_path / "b.tar")
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()


def test_an_archive_gives_back_its_images(images, tmp_path):
    """What an engine built is lost on the way into our archive."""
    write_archive(images, tmp_path / "out.tar")
    (tmp_path / "read").mkdir()
    read = read_archive(tmp_path / "out.tar", tmp_path / "read")

    assert settings_of(read) == settings_of(images)
    assert [[layer.digest for layer in image.layers] for image in read] == [
        [layer.digest for layer in image.layers] for image in images
    ]
    for image in read:
        for layer in image.layers:
            assert hashlib.sha256(layer.path.read_bytes()).hexdigest() == layer.digest


def test_a_layer_that_its_image_does_not_name_is_refused(images, tmp_path):
    """A torn export would become an image that fails in a pod."""
    (base, first), settings = images[0].layers, images[0].settings
    wrong = Layer(first.path, base.digest[::-1], first.size)
    write_archive([Image("first:1", settings, (base, wrong))], tmp_path / "out.tar")
    (tmp_path / "read").mkdir()

    with pytest.raises(ImageError, match="its image says"):
        read_archive(tmp_path / "out.tar", tmp_path / "read")
    assert not list((tmp_path / "read").glob("*.partial"))


def test_an_archive_is_there_whole_or_not(images, tmp_path):
    """The next run would take half an archive for a whole one."""
    gone = Layer(tmp_path / "gone.tar", "0" * 64, 1)
    with pytest.raises(FileNotFoundError):
        write_archive([Image("first:1", {}, (gone,))], tmp_path / "out.tar")
    assert not list(tmp_path.glob("out.tar*"))


def test_another_tar_is_no_archive_of_images(tmp_path):
    """The message names the file that is missing."""
    with tarfile.open(tmp_path / "out.tar", "w"):
        pass
    with pytest.raises(ImageError, match=r"has no file manifest\.json"):
        read_archive(tmp_path / "out.tar", tmp_path)
