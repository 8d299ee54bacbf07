"""`check` of where tickets lie: what a reboot leaves behind would start containers with devices that are gone."""

from dataclasses import replace
from pathlib import Path

import pytest
from factories.gpus.machine import POD_UID, PODS_DIR, ROOT_MOUNT, RUN_MOUNT, found, only
from factories.words import booking_of

from sluice.contracts.ids import NodeName
from sluice_node_agent.core.journal_records import NodeRecord, SliceRecord
from sluice_node_agent.preflight.findings import Check, ReadJournal
from sluice_node_agent.preflight.tickets import check_tickets, file_system_of


def test_tickets_that_outlive_a_reboot_are_told(well):
    """A container would start with a device that the reboot has ended."""
    told = only(replace(well, pods_dir=Path("/var/lib/sluice/pods")), Check.TICKETS, "warning")
    assert "/var/lib/sluice/pods is on ext4" in told.what
    assert "SLUICE_NODE_AGENT_PODS_DIR" in told.remedy


def test_tickets_that_lie_behind_a_link_are_looked_for_where_they_are(well, tmp_path):
    """/var/run is a link to /run: `check` warns of tickets on the disk, and says to put them where they are."""
    (tmp_path / "run").symlink_to("/run")
    assert [each.level for each in found(replace(well, pods_dir=tmp_path / "run/sluice/pods"), Check.TICKETS)] == ["ok"]


def _ready(owner, ticket="a1-r-1", boot_id="boot-1"):
    booking = booking_of("a1", "n1", owner=owner, namespace="lab", name="train")
    return SliceRecord(booking=booking, revision=1, phase="ready", devices=(), boot_id=boot_id, ticket=ticket)


@pytest.mark.parametrize("has_kubelet", [True, False])
def test_slices_whose_tickets_are_missing_are_told(well, tmp_path, has_kubelet):
    """All would be said to be well while no container of their pods starts."""
    node = NodeRecord(node=NodeName("n1"), boot_id="boot-1", generation_upto=1000)
    pods_dir = tmp_path / "pods" if has_kubelet else None
    records = (node, _ready(POD_UID), _ready(POD_UID, "of-before", "boot-0"))
    machine = replace(well, pods_dir=pods_dir, journal=ReadJournal(exists=True, records=records))
    (told,) = [finding for finding in check_tickets(machine) if finding.level == "problem"]
    assert "1 of 1 slices have no ticket" in told.what
    assert "lab/train" in told.what
    folder = pods_dir / POD_UID if has_kubelet else machine.data_dir / "tickets" / machine.node
    (folder / "a1-r-1").mkdir(parents=True)
    (folder / "a1-r-1/slice.json").write_text("{}")
    assert [finding for finding in check_tickets(machine) if finding.level == "problem"] == []


def test_without_proc_one_finding_is_enough(well):
    """Another finding reports already that processes are invisible."""
    (well.processes.root / "self/mountinfo").unlink()
    assert found(well, Check.TICKETS) == []


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
