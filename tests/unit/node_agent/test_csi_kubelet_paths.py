"""What a kubelet's path is taken for: root mounts and removes at what these tests let through."""

from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice_node_agent.csi.kubelet_paths import NoTarget, Target, is_pod_uid, target_of
from sluice_node_agent.kubelet.sockets import registration_socket, volumes_socket

ROOT = PurePosixPath("/var/lib/kubelet")
UID = "0d2f3a44-9c1e-4b7a-8f10-2b6c5d4e3f21"
STATIC = "7f" * 16
GOOD = f"{ROOT}/pods/{UID}/volumes/kubernetes.io~csi/sluice-slice/mount"


def test_a_pods_volume_is_found_by_its_path():
    """A pod, a static one included, gets its own volume and no other's."""
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
    found = target_of(path, ROOT)
    assert why in found.why


def test_a_path_of_another_pod_than_the_one_named_is_refused():
    found = target_of(GOOD, ROOT, uid=STATIC)
    assert found == NoTarget(f"target_path is of pod {UID}, but the volume is said to be of pod '{STATIC}'")


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
    assert str(registration_socket(ROOT, "slice.sluice.dev")) == "/var/lib/kubelet/plugins_registry/slice.sluice.dev-reg.sock"
