"""Folders of pods, and the paths at which a kubelet wants them."""

import fcntl
import stat
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice_node_agent.csi import pod_directories as module
from sluice_node_agent.csi.kubelet_paths import NoTarget, Target, is_pod_uid, target_of
from sluice_node_agent.csi.pod_directories import PodDirectories
from sluice_node_agent.kubelet.sockets import registration_socket, volumes_socket

UID = "0d2f3a44-9c1e-4b7a-8f10-2b6c5d4e3f21"
TARGET = Target(UID, "sluice-slice")


@pytest.fixture
def boot(tmp_path) -> Path:
    path = tmp_path / "boot_id"
    path.write_text("first\n")
    return path


@pytest.fixture
def sources(tmp_path, boot):
    there = PodDirectories(tmp_path / "run" / "pods", boot_id=boot)
    there.open()
    return there


def test_a_pods_directory_lets_its_user_pass_and_no_user_list(sources):
    """A container of any user starts; what others have on the node stays unseen."""
    place = sources.make(UID)
    assert sources.make(UID) == place
    assert stat.S_IMODE(place.stat().st_mode) == 0o711
    assert stat.S_IMODE(sources.root.stat().st_mode) == 0o700
    assert sources.all() == [place]
    for wrong in ("..", ".", "", "a/b", UID.upper()):
        with pytest.raises(OSError, match="no pod's UID"):
            sources.make(wrong)


def test_a_directory_stays_while_a_volume_shows_it(sources):
    """A directory that is created again would not appear in the volume: the pod would wait without end."""
    sources.make(UID)
    sources.note_published(TARGET)
    sources.note_published(Target(UID, "other"))
    sources.note_unpublished(Target(UID, "other"))
    sources.release(UID)
    assert sources.all()
    sources.note_unpublished(TARGET)
    sources.note_unpublished(TARGET)
    (sources.root / UID / "ticket").mkdir()
    sources.release(UID)
    assert sources.all(), "a pod may still be granted what is in it"
    (sources.root / UID / "ticket").rmdir()
    sources.release(UID)
    sources.release(UID)
    assert sources.all() == []


def test_a_restart_keeps_everything_and_a_reboot_nothing(sources, boot):
    """A ticket of the boot before stands for a device that is gone."""
    (sources.make(UID) / "ticket").mkdir()
    sources.note_published(TARGET)
    PodDirectories(sources.root, boot_id=boot).open()
    assert (sources.root / UID / "ticket").is_dir()
    assert sources.is_published(UID)
    boot.write_text("second\n")
    PodDirectories(sources.root, boot_id=boot).open()
    assert sources.all() == []
    assert not sources.is_published(UID)


def test_foreign_files_are_never_taken_for_ours(tmp_path, boot):
    folder = tmp_path / "home"
    (folder / "thesis").mkdir(parents=True)
    with pytest.raises(OSError, match="pods_dir must be a directory for Sluice alone"):
        PodDirectories(folder, boot_id=boot).open()
    assert (folder / "thesis").is_dir()


def test_a_link_in_place_of_a_directory_is_not_followed(sources, boot, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "kept").touch()
    (sources.make(UID) / "ticket").symlink_to(tmp_path / "elsewhere")
    boot.write_text("second\n")
    PodDirectories(sources.root, boot_id=boot).open()
    assert sources.all() == []
    assert (tmp_path / "elsewhere" / "kept").exists()


def test_two_never_change_it_at_once_and_none_waits_for_ever(sources, monkeypatch):
    """A volume is not mounted while its directory is removed; a process that hangs does not hang the other."""
    monkeypatch.setattr(module, "_LOCK_S", 0.05)
    with sources.locked(), pytest.raises(OSError, match=r"another process has held it for 0\.05 s"), sources.locked():
        pass
    with sources.locked(), (sources.root / ".lock").open() as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with sources.locked():
        pass


ROOT = PurePosixPath("/var/lib/kubelet")
STATIC = "7f" * 16
GOOD = f"{ROOT}/pods/{UID}/volumes/kubernetes.io~csi/sluice-slice/mount"


def test_a_pods_volume_is_found_by_its_path():
    """A pod, a static one included, gets its own volume and no other's."""
    why = f"target_path is of pod {UID}, but the volume is said to be of pod '{STATIC}'"
    assert target_of(GOOD, ROOT, uid=STATIC) == NoTarget(why)
    assert target_of(GOOD, ROOT) == Target(UID, "sluice-slice")
    assert target_of(GOOD, ROOT, uid=UID) == Target(UID, "sluice-slice")
    assert target_of(GOOD.replace(UID, STATIC), ROOT) == Target(STATIC, "sluice-slice")
    assert "/".join([str(ROOT), *Target(UID, "sluice-slice").parents, "mount"]) == GOOD


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("", "it must be /var/lib/kubelet/pods/<uid>/volumes/kubernetes.io~csi/<volume>/mount"),
        ("/etc/passwd", "it must be"),
        (GOOD + "/", "it must be"),
        (GOOD + "/x", "it must be"),
        (GOOD.replace("/pods/", "//pods/"), "it must be"),
        (GOOD.replace("/pods/", "/./pods/"), "it must be"),
        (GOOD.removesuffix("/mount"), "it must be"),
        (GOOD.removesuffix("mount") + "..", "it must be"),
        (GOOD.replace("/var/lib/kubelet", "/var/lib/kubelet2"), "it must be"),
        (GOOD.replace("kubernetes.io~csi", "kubernetes.io~empty-dir"), "it must be"),
        (GOOD.replace(UID, ".."), "'..', which is no pod's UID"),
        (GOOD.replace(UID, UID.upper()), "which is no pod's UID"),
        (GOOD.replace(UID, UID + "0"), "which is no pod's UID"),
        (GOOD.replace(UID, UID + "\n"), "which is no pod's UID"),
        (GOOD.replace("sluice-slice", ".."), "'..', which is no volume's name"),
        (GOOD.replace("sluice-slice", ""), "'', which is no volume's name"),
        (GOOD.replace("sluice-slice", "a.b"), "which is no volume's name"),
        (GOOD.replace("sluice-slice", "a" * 64), "which is no volume's name"),
        (GOOD.replace("sluice-slice", "a\0"), "which is no volume's name"),
    ],
)
def test_a_path_of_any_other_shape_is_refused_in_words(path, why):
    """Any caller of the socket has something mounted, or removed, elsewhere on the node."""
    assert why in target_of(path, ROOT).why


@given(st.text(max_size=80), st.sampled_from([UID, "sluice-slice", "mount", "pods", "volumes"]))
def test_no_path_leads_out(text, part):
    """Whatever is put into a path, what is taken from it are two plain names."""
    found = target_of(GOOD.replace(part, text), ROOT)
    if isinstance(found, Target):
        assert is_pod_uid(found.uid)
        assert not set(found.volume) - set("abcdefghijklmnopqrstuvwxyz0123456789-")
    else:
        assert len(found.why) < 700


def test_sockets_are_where_a_kubelet_looks():
    """A driver that is registered elsewhere is never found."""
    assert str(volumes_socket(ROOT)) == "/var/lib/kubelet/plugins/slice.sluice.dev/csi.sock"
    registered = registration_socket(ROOT, "slice.sluice.dev")
    assert str(registered) == "/var/lib/kubelet/plugins_registry/slice.sluice.dev-reg.sock"
