"""The folder and the identities file, on a real disk."""

import asyncio
import fcntl
import os
from dataclasses import replace

import pytest

from sluice.contracts.ids import RequestId
from sluice.contracts.messages import Claim
from sluice.contracts.reasons import Refusal, RefusalReason
from sluice.runtime.clock import SystemClock
from sluice.runtime.errors import ServiceError
from sluice_pod_watcher.core.folder import events as e
from sluice_pod_watcher.shell.folder import manifest_folder as folder_module
from sluice_pod_watcher.shell.folder.identity_file import IdentityFile
from sluice_pod_watcher.shell.folder.manifest_folder import ManifestFolder

ASKS = (
    e.RequestRevision(1, refusal=Refusal(reason=RefusalReason.NOT_YAML, message="no")),
    e.RequestRevision(2, (Claim(container="main", profile="1g.5gb", gpus=2),)),
)
RECORDS = (
    e.IdentityRecord(RequestId("w1-1"), "a.yaml", "default/a", "default", "a", ASKS),
    e.IdentityRecord(RequestId("w1-2"), "b.yaml", "", "", "", (e.RequestRevision(1),), "pod gone"),
)


@pytest.fixture
def folder(tmp_path) -> ManifestFolder:
    path = tmp_path / "pods"
    path.mkdir()
    return ManifestFolder(path, SystemClock(), 100)


async def test_only_manifests_are_read_and_each_that_cannot_be_says_why(folder):
    """One strange file hides no other, and holds nothing up."""
    path = folder.path
    (path / "b.yaml").write_text("b: 1\n")
    (path / "a.json").write_bytes(b"\xef\xbb\xbf{}")
    (path / "large.yml").write_text("x" * 101)
    (path / "binary.yaml").write_bytes(b"a: \xff\n")
    (path / "folder.yaml").mkdir()
    os.mkfifo(path / "pipe.yaml")
    (path / "dangling.yaml").symlink_to(path / "nowhere")
    for ignored in (".hidden.yaml", "a.yaml~", "a.yaml.swp", "README.md"):
        (path / ignored).write_text("x")
    assert await folder.list() == e.FolderListed(
        (
            e.ManifestFile("a.json", "{}"),
            e.ManifestFile("b.yaml", "b: 1\n"),
            e.ManifestFile("binary.yaml", error="no UTF-8 at byte 3"),
            e.ManifestFile("folder.yaml", error="no regular file"),
            e.ManifestFile("large.yml", too_large=True),
            e.ManifestFile("pipe.yaml", error="no regular file"),
        )
    )


async def test_a_change_that_keeps_size_and_time_is_still_seen(folder):
    """File times are coarse; a quick edit of the same length would be missed."""
    file = folder.path / "a.yaml"
    for text in ("a: 1\n", "a: 2\n", "a: 3\n"):
        file.write_text(text)
        os.utime(file, ns=(10**18, 10**18))
        assert await folder.list() == e.FolderListed((e.ManifestFile("a.yaml", text),))


async def test_a_file_with_a_name_that_is_no_text_is_listed(folder):
    (folder.path / os.fsdecode(b"\xff.yaml")).write_text("a: 1\n")
    assert await folder.list() == e.FolderListed((e.ManifestFile("\\xff.yaml", "a: 1\n"),))


async def test_a_listing_is_all_or_nothing(folder, monkeypatch):
    for name in ("a.yaml", "b.yaml"):
        (folder.path / name).write_text("a: 1\n")
    for files, size, told in ((1, 10, e.FolderUnlistable), (2, 9, e.FolderUnlistable), (2, 10, e.FolderListed)):
        monkeypatch.setattr(folder_module, "FILES_MAX", files)
        monkeypatch.setattr(folder_module, "TOTAL_BYTES_MAX", size)
        assert isinstance(await folder.list(), told)


def test_a_missing_folder_is_named_with_the_setting(tmp_path):
    missing = ManifestFolder(tmp_path / "nowhere", SystemClock(), 100)
    with pytest.raises(ServiceError, match=r"nowhere cannot be listed: No such file.*SLUICE_POD_WATCHER_PODS_DIR"):
        missing.check()


def test_identities_are_read_as_they_were_saved(tmp_path):
    with IdentityFile(tmp_path / "pods") as file:
        assert file.load() == ()
        file.save(RECORDS[:1])
        file.save(RECORDS)
        assert file.load() == RECORDS
        assert sorted(each.name for each in file.folder.iterdir()) == ["identities.json", "identities.lock"]


def test_what_changed_since_the_last_saving_is_saved(tmp_path):
    """A bound pod would get another identity after a restart; unchanged records are not encoded again."""
    changed = replace(RECORDS[0], ended="pod gone")
    with IdentityFile(tmp_path) as file:
        for records in (RECORDS, (changed, *RECORDS[1:]), RECORDS[1:], RECORDS, ()):
            file.save(records)
            assert file.load() == records


@pytest.mark.parametrize(
    "data", [b"", b"{", b"\xff", b"{}", b'{"format": 2, "identities": []}', b'{"format": 1, "identities": [{}]}']
)
def test_damaged_identities_stop_the_start_with_the_cure(tmp_path, data):
    """Beginning with new ids would end every running pod."""
    with IdentityFile(tmp_path) as file:
        file.path.write_bytes(data)
        with pytest.raises(ServiceError, match=r"identities\.json is damaged; restore a copy, or move it away"):
            file.load()


def test_identities_without_anything_said_are_damaged(tmp_path):
    with IdentityFile(tmp_path) as file:
        file.save((replace(RECORDS[0], asks=()),))
        with pytest.raises(ServiceError, match="incomplete"):
            file.load()


def test_a_second_pod_watcher_on_the_same_data_does_not_start(tmp_path):
    with IdentityFile(tmp_path), pytest.raises(ServiceError, match="another pod-watcher uses"):
        IdentityFile(tmp_path).__enter__()
    with IdentityFile(tmp_path) as again:
        assert again.load() == ()


async def test_a_leased_manifest_counts_only_while_it_is_held(folder):
    """A process that was killed with a slice would keep it forever."""
    (folder.path / "a.yaml").write_text("a: 1\n")
    leased = folder.path / "run.leased.yaml"
    leased.write_text("b: 1\n")
    plain = e.FolderListed((e.ManifestFile("a.yaml", "a: 1\n"),))
    assert await folder.list() == plain
    with leased.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        for _ in range(2):
            assert await folder.list() == e.FolderListed((*plain.files, e.ManifestFile("run.leased.yaml", "b: 1\n")))
    assert await folder.list() == plain


async def test_each_change_of_a_manifest_is_told_of(folder, monkeypatch):
    """A pod would wait for the next listing."""
    monkeypatch.setattr(folder_module, "LOOK_S", 3600.0)
    changes, file, draft = folder.changes(), folder.path / "a.yaml", folder.path / ".a"
    draft.write_text("a: 1\n")
    await anext(changes)  # what may have changed before the watch began
    for change in (lambda: draft.rename(file), lambda: file.write_text("a: 2\n"), file.unlink, folder.path.rmdir):
        hint = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0)
        change()
        await asyncio.wait_for(hint, 10)
    await changes.aclose()


async def test_a_lock_that_is_let_go_is_noticed_without_a_change_of_the_file(folder):
    """No event shows it: the slice of a killed holder would wait for the next listing."""
    leased = folder.path / "run.leased.yaml"
    leased.write_text("b: 1\n")
    held = leased.open("rb")
    fcntl.flock(held, fcntl.LOCK_EX)
    changes = folder.changes()
    try:
        await anext(changes)  # what may have changed before the watch began
        await folder.list()
        hint = asyncio.ensure_future(anext(changes))
        held.close()
        await asyncio.wait_for(hint, 10)
    finally:
        held.close()
        await changes.aclose()
    assert await folder.list() == e.FolderListed(())
