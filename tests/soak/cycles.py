"""The kinds of cycles: what is ordered and what must come; each leaves the node as it found it, and knows no kills."""

from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace
from soak.broker import Held
from soak.mps import failing, kill_daemons
from soak.outcome import SoakFailureError
from soak.rig import Rig

from sluice.contracts.ids import GpuUuid
from sluice.contracts.messages import DeviceGrant, Share


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of cycle. `end` puts right what a script could not (a fault that has not struck)."""

    name: str
    run: Callable[[Rig], None]
    mps: bool = False
    torn: bool = False
    """Whether to die within each write too; the bytes on disk are the same for every kind, so few kinds do."""
    racing: bool = False
    """Two orders race, so which records are written differs from run to run."""


def sliced(rig: Rig, gpu: int, profile: str, start: int, size: int) -> DeviceGrant:
    return DeviceGrant(container="main", gpu=GpuUuid(rig.gpus[gpu]), profile=profile, start=start, size=size)


def whole(rig: Rig, gpu: int) -> DeviceGrant:
    """A GPU without MIG."""
    return DeviceGrant(container="main", gpu=GpuUuid(rig.gpus[gpu]), profile=None, start=0, size=8)


def share(home: DeviceGrant, *, memory_mib: int, sm_partition: int = 0, uid: int = 0) -> DeviceGrant:
    mode = "fractional" if sm_partition else "mps"
    part = Share(mode=mode, uid=uid, memory_mib=memory_mib, sm_partition=sm_partition)
    return replace(home, share=part)


# -- plain ------------------------------------------------------------------------------------------------------------


def give_back(rig: Rig, *held: Held) -> None:
    """Revoke all, wait until they are gone, close them."""
    for one in held:
        rig.revoke(one)
    for one in held:
        rig.until_said(one, "SliceGone")
    for one in held:
        rig.finish(one)


def _one(rig: Rig, *devices: DeviceGrant) -> None:
    held = rig.grant(*devices)
    if rig.until_said(held, "SliceReady", "SliceFailed") == "SliceFailed" and not rig.may_fail:
        raise rig.failure(f"{held.allocation}: {held.word}")
    give_back(rig, held)


def exclusive(rig: Rig) -> None:
    _one(rig, sliced(rig, 0, "3g.20gb", 4, 4))


def two_gpus(rig: Rig) -> tuple[DeviceGrant, ...]:
    return sliced(rig, 0, "2g.10gb", 2, 2), sliced(rig, 1, "1g.5gb", 6, 1)


def several(rig: Rig) -> None:
    _one(rig, *two_gpus(rig))


def a_whole_gpu(rig: Rig) -> None:
    """A GPU without MIG."""
    _one(rig, whole(rig, rig_whole(rig)))


def one_after_the_other(rig: Rig) -> None:
    """The same place again, granted while the one before is being taken down."""
    first = rig.grant(sliced(rig, 1, "4g.20gb", 0, 4))
    rig.until_said(first, "SliceReady")
    rig.revoke(first)
    second = rig.grant(sliced(rig, 1, "4g.20gb", 0, 4), after=(first.allocation,))
    rig.until_said(second, "SliceReady")
    rig.until_said(first, "SliceGone")
    rig.finish(first)
    give_back(rig, second)


def revoked_half_way(rig: Rig) -> None:
    """The pod goes away while its slice is being made."""
    held = rig.grant(sliced(rig, 0, "2g.10gb", 0, 2), sliced(rig, 0, "1g.5gb", 5, 1))
    for _ in range(3):
        rig.turn()
    give_back(rig, held)


# -- trouble ----------------------------------------------------------------------------------------------------------


def in_use(times: int) -> Callable[[Rig], None]:
    """The driver says IN_USE so many times; from `quarantine_after` on it must have been reported to people."""

    def run(rig: Rig) -> None:
        held = rig.grant(sliced(rig, 0, "3g.20gb", 0, 4))
        rig.until_said(held, "SliceReady")
        rig.machine.fault(in_use_times=times)
        said: set[str] = set()
        rig.revoke(held)

        def is_gone() -> bool:
            said.add(held.said)
            return held.is_gone

        rig.until(is_gone, f"{held.allocation} is gone after {times} times IN_USE")
        if times > rig.config.quarantine_after and not rig.has_struck and "SliceQuarantined" not in said:
            raise rig.failure(f"{held.allocation} was in use {times} times without a warning: {said}")
        rig.finish(held)

    return run


def process_left(rig: Rig) -> None:
    """A process of the tenant outlives its pod for a while: the place is not free before it ends."""
    held = rig.grant(sliced(rig, 1, "2g.10gb", 4, 2))
    rig.until_said(held, "SliceReady")
    pid = rig.machine.start_process(held.word.devices[0].uuid, held.booking.owner)
    rig.revoke(held)
    rig.until(lambda: held.said in {"SliceQuarantined", "SliceGone"}, "the process is noticed")
    if held.is_gone:
        left = [f"process {pid} of {held.booking.owner}"]
        raise rig.failure(f"{held.allocation} is gone with process {pid} on it", left)
    rig.machine.stop_process(pid)
    rig.until_said(held, "SliceGone")
    rig.finish(held)


def foreign_in_the_way(rig: Rig) -> None:
    """An operator has put an instance at the granted place: it is left alone, and the grant fails."""
    gi_id = rig.machine.put_foreign(1, "1g.5gb", 4, 1)
    key = (rig.gpus[1], gi_id)
    rig.foreign.add(key)
    held = rig.grant(sliced(rig, 0, "1g.5gb", 4, 1), sliced(rig, 1, "3g.20gb", 4, 4))
    rig.until_said(held, "SliceFailed")
    give_back(rig, held)
    rig.machine.take_foreign(1, gi_id)
    rig.foreign.discard(key)


def refused_once(fault: str, start: int) -> Callable[[Rig], None]:
    """The driver refuses an instance (`insufficient`), or its compute instance (`ci_fails`): nothing is left of it."""

    def run(rig: Rig) -> None:
        rig.machine.fault(**{fault: 1})
        held = rig.grant(sliced(rig, 0, "1g.5gb", start, 1))
        rig.until_said(held, "SliceFailed", "SliceReady")
        give_back(rig, held)
        rig.machine.fault(**{fault: 0})

    return run


# -- shares -----------------------------------------------------------------------------------------------------------


def rig_whole(rig: Rig) -> int:
    """The index of the last GPU: the one without MIG."""
    return len(rig.gpus) - 1


def share_of_a_gpu(rig: Rig) -> None:
    """An MPS share of a whole GPU: the home, its daemon and the compute mode come and go with it."""
    _one(rig, share(whole(rig, rig_whole(rig)), memory_mib=8000))


def share_of_an_instance(rig: Rig) -> None:
    _one(rig, share(sliced(rig, 0, "3g.20gb", 4, 4), memory_mib=4000, sm_partition=20))


def neighbours(rig: Rig) -> None:
    """Two shares of one home: neither the second nor its end disturbs the first."""
    home = sliced(rig, 0, "3g.20gb", 4, 4)
    first = rig.grant(share(home, memory_mib=4000), namespace="team")
    rig.until_said(first, "SliceReady")
    second = rig.grant(share(home, memory_mib=6000), namespace="team")
    rig.until_said(second, "SliceReady")
    give_back(rig, first)
    rig.until_said(second, "SliceReady")
    give_back(rig, second)


def daemon_dies(rig: Rig) -> None:
    """The MPS daemon is killed under its tenant: it is restarted, and the tenant gets a warning."""
    held = rig.grant(share(whole(rig, rig_whole(rig)), memory_mib=8000))
    rig.until_said(held, "SliceReady")
    if not kill_daemons(rig.place.mps):
        raise SoakFailureError(f"{held.allocation} is ready and no daemon runs")
    rig.counts.daemons += 1
    rig.until(lambda: held.is_ready and held.word.warnings, f"{held.allocation} has the warning that its daemon died")
    give_back(rig, held)


def no_daemon(switch: str) -> Callable[[Rig], None]:
    """The MPS daemon does not come up: the share fails, and nothing of its home is left."""

    def run(rig: Rig) -> None:
        with failing(rig.root, switch):
            held = rig.grant(share(sliced(rig, 0, "3g.20gb", 4, 4), memory_mib=4000))
            rig.until_said(held, "SliceFailed")
        give_back(rig, held)

    return run


PLAIN = (
    Kind("exclusive", exclusive, torn=True),
    Kind("several devices", several),
    Kind("whole GPU", a_whole_gpu),
    Kind("one after the other", one_after_the_other, racing=True),
    Kind("revoked half-way", revoked_half_way, racing=True),
    Kind("in use once", in_use(1)),
    Kind("process left", process_left),
    Kind("foreign in the way", foreign_in_the_way),
    Kind("no compute instance", refused_once("ci_fails", 2)),
    Kind("no room", refused_once("insufficient", 3)),
)
SHARED = (
    Kind("share of a GPU", share_of_a_gpu, mps=True, torn=True),
    Kind("share of an instance", share_of_an_instance, mps=True),
    Kind("neighbours", neighbours, mps=True),
    Kind("daemon dies", daemon_dies, mps=True),
    Kind("no MPS daemon", no_daemon("start_fails"), mps=True),
    Kind("no MPS server", no_daemon("server_fails"), mps=True),
)
IN_USE_MAX = 6
"""Twice `quarantine_after` of the soak's rules."""
