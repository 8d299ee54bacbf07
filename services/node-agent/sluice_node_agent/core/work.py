"""
One slice under way: its record, what it waits for, and how often unmaking it has failed.

Also the few changes to a record that making and unmaking share. No decisions here.
"""

from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from sluice.contracts.ids import AllocationId
from sluice.contracts.messages import DeviceGrant
from sluice_node_agent.core.events import OwnInstruction
from sluice_node_agent.core.records import DeviceRecord, SliceRecord, Tombstone

Next = SliceRecord | Tombstone | OwnInstruction | None
"""What one slice needs next: a record to be saved first, an instruction, or nothing."""


@dataclass(slots=True)
class Work:
    """One slice that is not gone."""

    record: SliceRecord
    waits_for: int | None = None
    """The token of the one instruction that is out for it."""
    saving: bool = False
    """That instruction is a save: what the record says is not on disk yet, so it is not told to anybody."""
    free_of_holders: tuple[int, ...] = ()
    """Devices on which no process of the tenant was found in this attempt to unmake."""
    failures: int = 0
    """Failed attempts to take its devices down, in a row."""
    retry_at: float | None = None
    trouble: str = ""
    holders: tuple[str, ...] = ()

    @property
    def allocation(self) -> AllocationId:
        """Whose slice it is."""
        return self.record.booking.allocation

    def recovered(self) -> None:
        """The last attempt got further: what went wrong before does not count any more."""
        self.failures = 0
        self.retry_at = None
        self.trouble = ""
        self.holders = ()


def pairs(record: SliceRecord) -> list[tuple[int, DeviceGrant, DeviceRecord]]:
    """Each device with its number and how far it is."""
    return [(n, grant, record.devices[n]) for n, grant in enumerate(record.booking.devices)]


def with_device(record: SliceRecord, number: int, **changes: Any) -> SliceRecord:
    """The record with one device changed."""
    devices = list(record.devices)
    devices[number] = replace(devices[number], **changes)
    return replace(record, devices=tuple(devices))


def without_instance(record: SliceRecord, number: int) -> SliceRecord:
    """The record with one device that is not there (any more)."""
    return with_device(record, number, step="planned", gi_id=None, uuid="")


def failing(record: SliceRecord, error: str, message: str) -> SliceRecord:
    """Making it did not work: undo what there is."""
    return replace(record, phase="undoing", error=error, message=message)
