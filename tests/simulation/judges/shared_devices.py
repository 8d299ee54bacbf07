"""Rules about shares, as texts on what is wrong: one daemon per home, of the right device and user, while needed."""

from simulation.judges.gpu_tables import Span, fits_in, overlap
from simulation.judges.share_limits import Held, held_by, overfull, width_of
from simulation.world.hardware import OPERATOR, Gpu, Machine, Process, Ticket
from simulation.world.mps_daemons import Daemon, clients_of

from sluice.contracts.messages import Booking, DeviceGrant

MINE = tuple[Gpu, DeviceGrant, str]
"""One device of a ticket: where it is, what was granted, and its UUID."""


def wrong_neighbours(gpu: Gpu, mine: Held, others: list[Held]) -> str:
    """A share is granted: it is beside its own kind only, and all of them together fit in the home."""
    assert mine.share is not None
    together = [other.share for other in others if other.lives_with(mine.share, mine.span, mine.domain)]
    shares = [mine.share, *(share for share in together if share is not None)]
    too_much = overfull(gpu.row, mine.profile, shares, taking_turns=gpu.taking_turns)
    return f"{mine.allocation} is one share too many in {mine.span} of {gpu.uuid}: {too_much}" if too_much else ""


def wrong_ticket(machine: Machine, ticket: Ticket, booking: Booking) -> str:
    """A tenant is let in: its daemon is there, is of its trust domain, and lets it use what it was granted."""
    for gpu, device, uuid in _devices(machine, ticket, booking):
        if device.share is None:
            if uuid == gpu.uuid and gpu.exclusive:
                return f"{ticket.allocation} is handed {gpu.uuid}, which is left in compute mode EXCLUSIVE_PROCESS"
            if machine.mps.serving(uuid):
                return f"{ticket.allocation} is handed {uuid} for itself, on which there is {machine.mps.serving(uuid)}"
            continue
        wrong = _wrong_home(machine, gpu, uuid, device, booking, ticket)
        if wrong:
            return f"{ticket.allocation} is handed a share of {uuid}, {wrong}"
    told = [
        home for home in ticket.homes if (daemon := machine.mps.listed.get(home)) is None or not _may_be(daemon, ticket)
    ]
    shared = {device.container for device in booking.devices if device.share is not None}
    if told or len(ticket.homes) != len(shared):
        return f"{ticket.allocation} with shares for {sorted(shared)} names the homes {ticket.homes}"
    return ""


def _wrong_home(machine: Machine, gpu: Gpu, uuid: str, device: DeviceGrant, booking: Booking, ticket: Ticket) -> str:
    share = device.share
    daemons = [daemon for daemon in machine.mps.listed.values() if daemon.device == uuid and _may_be(daemon, ticket)]
    if len(daemons) != 1:
        return f"which has the daemons {daemons}"
    daemon, there = daemons[0], daemons[0].directory
    if (there.namespace, there.uid) != (booking.namespace, share.uid):
        return f"whose daemon is {there}"
    if not gpu.mig and not gpu.exclusive and daemon.alive:
        return "whose GPU is not in compute mode EXCLUSIVE_PROCESS"
    width = width_of(share, gpu.row, device.profile or "")
    if daemon.percent < width or daemon.memory_mib < share.memory_mib:
        return f"whose daemon allows {daemon.percent} % and {daemon.memory_mib} MiB; granted {width} % and {share}"
    return ""


def _may_be(daemon: Daemon, ticket: Ticket) -> bool:
    """It runs, or died unnoticed by its agent when the ticket was made."""
    return daemon.alive or daemon.noticed_at > ticket.ordered_at


def _devices(machine: Machine, ticket: Ticket, booking: Booking) -> list[MINE]:
    found: list[MINE] = []
    for device in booking.devices:
        gpu, span = machine.gpus[device.gpu], (device.start, device.size)
        uuids = [uuid for uuid in ticket.devices if gpu.span_of(uuid) == span and (uuid == gpu.uuid) != gpu.mig]
        found += [(gpu, device, uuid) for uuid in uuids[:1]]
    return found


def live_together(one: Booking, other: Booking, gpu: Gpu, span: Span) -> bool:
    """Whether both have a share of the home at exactly this place."""
    mine = [held_by(one, device) for device in one.devices if device.gpu == gpu.uuid]
    return any(
        share.span == span and theirs.lives_with(share.share, share.span, share.domain)
        for share in mine
        for device in other.devices
        if device.gpu == gpu.uuid
        for theirs in [held_by(other, device)]
    )


def wrong_client(machine: Machine, process: Process, booking: Booking) -> str:
    """A container of a tenant runs: as a client of its home's daemon, and not beside it."""
    gpu = machine.gpu_with(process.device)
    span = gpu.span_of(process.device)
    grants = [d for d in booking.devices if d.gpu == gpu.uuid and (d.start, d.size) == span and d.share is not None]
    if not grants:
        return f"{process} of {booking.allocation} is a client of a daemon" if process.home else ""
    daemon = machine.mps.alive(process.home)
    if daemon is None or daemon.device != process.device:
        return f"{process} of {booking.allocation} has a share, and runs without the daemon of its device: {daemon}"
    there, share = daemon.directory, grants[0].share
    strangers = (there.namespace, there.uid) != (booking.namespace, share.uid)
    return f"{process} of {booking.allocation} is a client of {there}" if strangers else ""


def wrong_start(machine: Machine, daemon: Daemon) -> str:
    """A daemon was started: the only one of its device."""
    every = machine.mps.serving(daemon.device)
    return f"{daemon.device} is served by {every}" if len(every) > 1 else ""


def wrong_stop(machine: Machine, daemon: Daemon) -> str:
    """A daemon is about to be stopped: it has no clients and accepts none."""
    if not daemon.answered:
        return ""
    for ticket in machine.tickets.values():
        if daemon.home in ticket.homes or daemon.device in ticket.devices:
            return f"{daemon} is stopped while {ticket} is there"
    gpu = machine.gpus[daemon.directory.gpu]
    clients = clients_of(gpu, daemon.home)
    return f"{daemon} is stopped under {clients}" if clients else ""


def is_home_of(daemon: Daemon, machine: Machine, device: DeviceGrant) -> bool:
    """Whether a granted share is in the home of this daemon."""
    gpu = machine.gpus.get(device.gpu)
    if gpu is None or device.share is None or device.gpu != daemon.directory.gpu:
        return False
    return gpu.span_of(daemon.device) == (device.start, device.size)


def left_behind(machine: Machine, gpu: Gpu, span: Span) -> str:
    """The last share of a home is said to be gone: so are its daemon and its compute mode."""
    daemons = [d for d in machine.mps.listed.values() if d.directory.gpu == gpu.uuid and gpu.span_of(d.device) == span]
    if daemons:
        return f"{daemons[0]} is there"
    return f"{gpu.uuid} is in compute mode EXCLUSIVE_PROCESS" if gpu.exclusive and span == gpu.whole else ""


def in_the_way(gpu: Gpu, profile_id: int, span: Span, held: list[Held]) -> str:
    """An instance could not be created; without compute instance what is in the way can only be a warm one."""
    profile = gpu.row.profile_of_id(profile_id)
    booked = {(place.profile, place.span) for place in held if place.gpu == gpu.uuid}
    warm = [
        one
        for one in gpu.instances.values()
        if one.maker != OPERATOR and not one.uuid and (one.profile.name, one.span) not in booked
    ]
    rest = [(one.profile.name, one.span) for one in gpu.instances.values() if one not in warm]
    if profile is None or not warm or not fits_in(gpu.row, rest, profile, span):
        return ""
    return f"{profile.name} at {span} of {gpu.uuid} is refused because of {warm}"


def overlapping(held: list[Held], mine: Held) -> Held | None:
    """A holder of a part of the place that does not share it."""
    for other in held:
        shares = mine.share is not None and other.lives_with(mine.share, mine.span, mine.domain)
        if other.gpu == mine.gpu and overlap(other.span, mine.span) and not shares:
            return other
    return None


def instances_of(held: list[Held], gpu: str) -> list[tuple[str, Span]]:
    """The instances at these places: a shared device has one, for all its tenants."""
    return list(dict.fromkeys((one.profile, one.span) for one in held if one.gpu == gpu))
