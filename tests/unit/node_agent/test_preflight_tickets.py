"""`check` of where tickets lie: what a reboot leaves behind would start containers with devices that are gone."""

from dataclasses import replace
from pathlib import Path

import pytest
from factories.machines import PODS_DIR, ROOT_MOUNT, RUN_MOUNT, found, made_hardware, only, well_made

from sluice_node_agent.device.preflight import Check
from sluice_node_agent.device.preflight_tickets import file_system_of


@pytest.fixture
def well(tmp_path):
    """A real node whose tickets lie where they shall."""
    with well_made(made_hardware(tmp_path)) as machine:
        yield machine


def test_tickets_on_a_tmpfs_are_well(well):
    """As deployed."""
    assert [finding.level for finding in found(well, Check.TICKETS)] == ["ok"]


def test_tickets_that_outlive_a_reboot_are_told(well):
    """The remedy names the setting and where to put it."""
    told = only(replace(well, pods_dir=Path("/var/lib/sluice/pods")), Check.TICKETS, "warning")

    assert "/var/lib/sluice/pods is on ext4" in told.what
    assert "SLUICE_NODE_AGENT_PODS_DIR" in told.remedy


def test_tickets_that_lie_behind_a_link_are_looked_for_where_they_are(well, tmp_path):
    """/var/run is a link to /run: `check` warns of tickets on the disk, and says to put them where they are."""
    (tmp_path / "run").symlink_to("/run")

    assert [each.level for each in found(replace(well, pods_dir=tmp_path / "run/sluice/pods"), Check.TICKETS)] == ["ok"]


def test_without_proc_one_finding_is_enough(well):
    """That the processes cannot be seen is told already."""
    (well.processes.root / "self/mountinfo").unlink()
    assert found(well, Check.TICKETS) == []


def test_a_node_without_a_kubelet_has_no_such_tickets(well):
    """Nothing to complain about on a desk."""
    assert found(replace(well, pods_dir=None), Check.TICKETS) == []


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        ((ROOT_MOUNT,), "ext4"),
        ((ROOT_MOUNT, RUN_MOUNT), "tmpfs"),
        ((RUN_MOUNT, ROOT_MOUNT), "tmpfs"),
        ((ROOT_MOUNT, RUN_MOUNT, "30 25 8:2 / /run/sluice rw - xfs /dev/sdb rw"), "xfs"),
        ((ROOT_MOUNT, RUN_MOUNT, "30 22 8:2 / /run/sluice-other rw - xfs /dev/sdb rw"), "tmpfs"),
        ((ROOT_MOUNT, RUN_MOUNT, "31 25 8:2 / /run rw - xfs /dev/sdb rw"), "xfs"),
        (("nonsense", ROOT_MOUNT, "30 22 0:1 / /run/a\\040b rw - proc proc rw"), "ext4"),
        ((), ""),
    ],
)
def test_the_nearest_mount_above_counts_and_of_two_the_later(lines, kind):
    """A bind mount in the agent's container lies over the image's own directories."""
    assert file_system_of(PODS_DIR, "\n".join(lines)) == kind
