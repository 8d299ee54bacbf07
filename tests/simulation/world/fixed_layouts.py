"""GPUs partitioned by an administrator, who applies the layout after reboots and removes idle instances at times."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from simulation.judges.gpu_tables import A30, A100, GpuRow, overlap
from simulation.judges.share_limits import Domain, Held, overfull
from simulation.world.hardware import Gpu, Layout

if TYPE_CHECKING:
    from simulation.plans.pods import Device
    from simulation.world.trace import Trace
    from simulation.world.virtual_clock import VirtualClock

FIXED_SEEDS = 0.25
"""In so many seeds (of those without jobs and quotas) some GPUs have a fixed layout."""
FIXED_GPUS = 0.5
RELAYS_MEAN = 2
LATE_S = 6.0
"""After a reboot the layout is there again within this time."""
LAYOUTS: dict[str, tuple[Layout, ...]] = {
    A100.product_name: (
        (("3g.20gb", (0, 4)), ("2g.10gb", (4, 2)), ("1g.5gb", (6, 1))),
        (("1g.5gb", (0, 1)), ("1g.5gb", (1, 1)), ("2g.10gb", (2, 2)), ("3g.20gb", (4, 4))),
        (("7g.40gb", (0, 8)),),
        (("1g.10gb", (0, 2)), ("1g.5gb+me", (2, 1))),
    ),
    A30.product_name: ((("2g.12gb", (0, 2)), ("1g.6gb", (2, 1)), ("1g.6gb", (3, 1))), (("4g.24gb", (0, 4)),)),
}


def draw_layouts(dice: Random, nodes: tuple[tuple[str, tuple[tuple[GpuRow, bool], ...]], ...]) -> dict[str, Layout]:
    """Which GPUs are fixed, and how; by UUID."""
    found: dict[str, Layout] = {}
    for node, gpus in nodes:
        for index, (row, mig) in enumerate(gpus):
            if mig and dice.random() < FIXED_GPUS:
                found[uuid_of(node, index)] = dice.choice(LAYOUTS[row.product_name])
    return found


def uuid_of(node: str, index: int) -> str:
    """The UUID of a GPU of the world."""
    return f"GPU-{node.split('.', maxsplit=1)[0]}-{index}"


class Administrator:
    """The owner of the fixed layouts."""

    def __init__(self, clockwork: VirtualClock, trace: Trace, seed: int) -> None:
        self._clockwork = clockwork
        self._trace = trace
        self._dice = Random(f"administrator {seed}")

    def rebooted(self, gpus: list[Gpu]) -> None:
        """The instances are gone: the administrator applies the layout again some time later."""
        for gpu in gpus:
            if gpu.layout is not None:
                self._clockwork.after(self._dice.uniform(0.0, LATE_S), gpu.lay_out)

    def takes_one_away(self, gpus: list[Gpu], lasts_s: float) -> None:
        """An idle one, for a while: the driver refuses any other."""
        idle = [
            (gpu, instance)
            for gpu in gpus
            for instance in gpu.instances.values()
            if gpu.layout is not None
            and instance.uuid not in gpu.servers.values()
            and all(process.device != instance.uuid for process in gpu.processes)
        ]
        if not idle:
            return
        gpu, instance = self._dice.choice(sorted(idle, key=lambda each: (each[0].uuid, each[1].span)))
        self._trace.tell("hardware", "taken away", gpu.uuid, instance)
        del gpu.instances[instance.gi_id]
        self._clockwork.after(lasts_s, gpu.lay_out)


# -- what can be had --------------------------------------------------------------------------------------------------


def profiles_there(device: Device, gpu: Gpu) -> list[str]:
    """The profiles of a layout that serve a device, the one that is due first: the smallest that is there."""
    assert gpu.layout is not None
    there = {name for name, _ in gpu.layout}
    name = device.profile_on(gpu.row, mig=True)
    if device.want not in {"memory", "percentage"}:
        return [name] if name in there and name is not None else []
    if "exclusive" not in device.modes:
        return []
    largest = gpu.row.profiles[-1].multiprocessors
    enough = [
        row
        for row in gpu.row.profiles
        if row.name in there
        and (
            row.memory_mib >= device.amount
            if device.want == "memory"
            else row.multiprocessors * 100 >= device.amount * largest
        )
    ]
    enough.sort(key=lambda row: (row.compute_slices, row.memory_mib, len(row.name), row.name))
    return [row.name for row in enough]


def fits_on(gpu: Gpu, held: list[Held], device: Device, domain: Domain) -> bool:
    """Whether one device would fit on a fixed GPU beside what is held there: only instances of its layout count."""
    assert gpu.layout is not None
    free = [(name, span) for name, span in gpu.layout if not any(overlap(one.span, span) for one in held)]
    due = profiles_there(device, gpu)[:1]
    if any(name in due for name, _ in free):
        return True
    largest = gpu.row.profiles[-1].name
    for mode in device.modes:
        if mode == "exclusive":
            continue
        share = device.share_on(gpu.row, mode, domain[1], mig=True)
        for profile, span in gpu.layout:
            theirs = [one.share for one in held if one.lives_with(share, span, domain) and one.share is not None]
            strange = [one for one in held if overlap(one.span, span) and not one.lives_with(share, span, domain)]
            whole = device.want != "part" or profile == largest
            plain = bool(theirs) or "+" not in profile
            if whole and plain and not strange and not overfull(gpu.row, profile, [share, *theirs]):
                return True
    return False
