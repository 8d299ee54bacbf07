"""A journal damaged while the agent is down: it says so, finds its slices again, disturbs and leaves nothing."""

from collections.abc import Callable
from pathlib import Path

from soak.broker import Held
from soak.cycles import give_back, share, sliced
from soak.rig import Rig

from sluice.contracts.messages import DeviceGrant

Damage = Callable[[bytes, int], bytes | None]
"""The bytes and the number of a record -> what is left; None for no file at all."""


def cut_in(data: bytes, number: int) -> bytes:
    """The file ends in the middle of a record."""
    lines = data.splitlines(keepends=True)
    return b"".join(lines[:number]) + lines[number][: len(lines[number]) // 2]


def cut_before(data: bytes, number: int) -> bytes:
    """The file ends before a record, as if that had never been written."""
    return b"".join(data.splitlines(keepends=True)[:number])


def flip_in(data: bytes, number: int) -> bytes:
    """One bit of a record is another."""
    lines = data.splitlines(keepends=True)
    at = sum(map(len, lines[:number])) + len(lines[number]) // 2
    return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


def take_away(_data: bytes, _number: int) -> None: ...


DAMAGES: tuple[tuple[str, Damage], ...] = (
    ("cut within", cut_in),
    ("cut before", cut_before),
    ("a bit flipped in", flip_in),
    ("lost with", take_away),
)


def damage_every_record(rig: Rig, say: Callable[[str], None], *, stride: int = 1) -> None:
    """Each damage to each record of the journal of a node with live slices; the node must be the same afterwards."""
    for name, damage in DAMAGES:
        number = done = 0
        while True:
            held = _live_slices(rig)
            before = [(one.word.devices, one.word.ticket) for one in held]
            lines = rig.place.journal.read_bytes().count(b"\n")
            if number >= lines:
                give_back(rig, *held)
                break
            _damage(rig, rig.place.journal, damage, number)
            snapshot = rig.ask_snapshot()
            what = f"a journal that was {name} record {number} of {lines}"
            if not snapshot.warnings:
                raise rig.failure(f"{what}: there is no warning")
            rig.check()
            if (now := [(one.word.devices, one.word.ticket) for one in held]) != before:
                raise rig.failure(f"{what}: live slices were disturbed: {before} -> {now}")
            give_back(rig, *held)
            rig.check()
            rig.counts.damages += 1
            done += 1
            number += stride
            if damage is take_away:
                break
        say(f"journal {name} each of {done} records")


def _live_slices(rig: Rig) -> list[Held]:
    wanted: list[tuple[DeviceGrant, ...]] = [
        (sliced(rig, 0, "2g.10gb", 0, 2),),
        (sliced(rig, 0, "1g.5gb", 6, 1), sliced(rig, 1, "3g.20gb", 4, 4)),
        (share(sliced(rig, 1, "2g.10gb", 0, 2), memory_mib=2000),),
    ]
    held = [rig.grant(*devices) for devices in wanted]
    for one in held:
        rig.until_said(one, "SliceReady")
    return held


def _damage(rig: Rig, journal: Path, damage: Damage, number: int) -> None:
    rig.end_agent()
    left = damage(journal.read_bytes(), number)
    if left is None:
        journal.unlink()
    else:
        with journal.open("r+b") as file:
            file.write(left)
            file.truncate(len(left))
    rig.note(f"journal damaged at record {number}")
    rig.start()
