"""Images without an engine, on a base of one static program."""

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cluster.images.archive import Image
from cluster.images.assembler import Assembler
from cluster.images.dockerfile import parse
from cluster.images.errors import ImageError
from cluster.images.layers import files_of
from cluster.images.small import busybox, busybox_image
from cluster.images.store import Store

TEXT = """\
ARG BASE
FROM ${BASE} AS build
ARG WHAT=nothing
ENV KEPT=yes
WORKDIR /src
COPY early ./
RUN echo "$WHAT $KEPT $(cat early)" > /first && ls /dev/null
COPY tree tree
RUN mkdir /out && cp tree/file /out/ && chmod 0750 /out/file && rm /first && echo again >> /tmp/log

FROM ${BASE}
ARG WHAT
LABEL what="${WHAT}"
COPY --from=build /out /opt/out
USER 7:8
RUN id -u > /tmp/user
WORKDIR /
ENTRYPOINT ["/opt/out/file"]
"""


def _why_not() -> str:
    if os.geteuid() != 0:
        return "steps run in namespaces of their own, which needs root"
    for program in ("unshare", "setpriv"):
        if shutil.which(program) is None:
            return f"there is no {program} (Debian's package util-linux)"
    if subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], check=False, capture_output=True).returncode:
        return "this machine makes no namespaces"
    try:
        busybox()
    except ImageError as error:
        return str(error)
    return ""


WHY_NOT = _why_not()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store with a base of busybox."""
    (tmp_path / "small").mkdir()
    test = busybox_image(tmp_path / "small")
    store = Store(tmp_path / "store")
    store.make()
    shutil.copyfile(test.layers[0].path, store.place_of("base"))
    store.keep("base", test.layers[0])
    store.keep_image("base:1", {"Env": ["PATH=/bin"], "Cmd": ["sh"]}, ["base"], [])
    return store


@pytest.fixture
def context(tmp_path: Path) -> Path:
    """What is copied."""
    context = tmp_path / "context"
    (context / "tree").mkdir(parents=True)
    (context / "tree" / "file").write_text("one")
    (context / "early").write_text("early")
    return context


@pytest.fixture
def build(store: Store, context: Path, tmp_path: Path) -> Iterator[Callable[..., tuple[Image, int]]]:
    """Builds, and returns the image and how many steps had to be done; checks that nothing stays mounted."""

    def run(text: str = TEXT, **arguments: str) -> tuple[Image, int]:
        known = len(list((store.folder / "layers").glob("*.json")))
        work = tmp_path / f"work-{len(list(tmp_path.iterdir()))}"
        work.mkdir()
        Assembler(store, context, work, {"BASE": "base:1", **arguments}, []).build(parse(text), "made:1")
        return store.image("made:1")[0], len(list((store.folder / "layers").glob("*.json"))) - known

    yield run
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()


def test_an_image_is_what_its_file_says(build):
    """A service would start as root, without its files, or as another program."""
    image, _ = build(WHAT="slices")

    assert image.settings == {
        "Env": ["PATH=/bin"], "Labels": {"what": "slices"}, "User": "7:8", "WorkingDir": "/",
        "Entrypoint": ["/opt/out/file"],
    }  # fmt: skip
    seen = files_of([layer.path for layer in image.layers])
    own = {path: entry for path, entry in seen.items() if path not in files_of([image.layers[0].path])}
    assert set(own) == {"opt", "opt/out", "opt/out/file", "tmp/user"}
    assert (own["opt/out/file"].mode, own["opt/out/file"].uid) == (0o750, 0)
    assert (own["tmp/user"].uid, own["tmp/user"].gid) == (7, 8)


def test_a_step_is_done_again_only_when_what_goes_into_it_changed(build, context):
    """A change of our sources would fetch all packages again."""
    _, first = build()
    _, second = build()
    (context / "tree" / "file").write_text("two")
    image, third = build()
    _, fourth = build(WHAT="other")

    assert (first, second) == (8, 0)
    assert third == 5, "the COPY of the tree and what follows it"
    assert fourth > third
    assert any(entry.size == 3 for entry in files_of([image.layers[1].path]).values())


def test_steps_of_earlier_sources_do_not_stay(build, store, context):
    """The cache would grow with each change."""
    build()
    (context / "tree" / "file").write_text("two")
    build()
    before = len(list((store.folder / "layers").iterdir()))
    store.sweep()
    _, done = build()

    assert len(list((store.folder / "layers").iterdir())) < before
    assert done == 0


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("FROM gone:1\n", "there is no image 'gone:1' here, and none can be pulled"),
        ("FROM base:1\nRUN echo bad; exit 3\n", "line 2, RUN: `/bin/sh -c echo bad; exit 3` ended with 3:\nbad"),
        ('FROM base:1\nRUN ["/gone"]\n', "the image has no program /gone"),
        ("FROM base:1\nCOPY gone /\n", "line 2, COPY: there is no gone in the context"),
        ("FROM base:1\nCOPY --from=gone a b\n", "line 2, COPY: --from=gone is no earlier stage"),
        ("FROM base:1\nUSER name\nRUN true\n", "line 3, RUN: after USER name: only numbers"),
        ("FROM base:1\nRUN ln -s / /away\nCOPY early /away/etc/\n", "line 3, COPY: /away/etc leads over a link"),
    ],
)
def test_what_cannot_be_built_says_why(build, text, problem):
    """A build's log is long enough."""
    with pytest.raises(ImageError) as caught:
        build(text)
    assert problem in str(caught.value)


def test_it_is_called_as_an_engine_is(store, context, tmp_path):
    """deploy/docker/build.sh knows no other way."""
    (context / "own.Dockerfile").write_text("FROM base:1\nARG WHAT\nRUN echo $WHAT > /what\n")
    with tarfile.open(tmp_path / "context.tar", "w") as archive:
        archive.add(context, arcname=".")
    words = ["build", "--force-rm", "-f", "own.Dockerfile", "-t", "own:1", "--build-arg", "WHAT", "-"]
    with (tmp_path / "context.tar").open("rb") as stream:
        done = subprocess.run(
            [sys.executable, Path(__file__).with_name("assemble.py"), *words],
            env={**os.environ, "SLUICE_ASSEMBLE_STORE": str(store.folder), "WHAT": "value"},
            stdin=stream, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    (_, layer) = store.image("own:1")[0].layers
    assert files_of([layer.path])["what"].size == len("value\n")
    assert not list(store.folder.glob("assemble-*"))
