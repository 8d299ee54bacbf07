"""Tickets: directories with unique names that exist only while their slice is ready: no container that mounts one
starts before, or after the slice was created again. `slice.json` inside is for people, and, with a checksum, for an
agent that has lost its journal. With a kubelet, a pod's tickets are in the directory that its volume shows
(`csi.pod_directories`), and a container with a share has its daemon's home beside the ticket
(`sluice.contracts.ticket_paths`). All others are in one directory, with links `<ticket>/<container>/pipe` and
`.../log`; a slice with ResourceClaims has only its document there. Removal follows no link, and enters no mount: behind
both may be the sockets of a daemon that other pods use."""

import errno
import os
import shutil
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from sluice.contracts.bus.codec import NOT_READABLE
from sluice.contracts.kube.names import is_ticket_name
from sluice.contracts.messages import ContainerDevices
from sluice.contracts.reasons import shorten
from sluice.contracts.ticket_paths import LOG, PIPE, SHARE_PREFIX, ticket_of
from sluice_node_agent.core.events import FoundTicket
from sluice_node_agent.core.instructions import MakeTicket
from sluice_node_agent.core.journal_records import TicketRecord
from sluice_node_agent.csi.kubelet_paths import is_pod_uid
from sluice_node_agent.csi.pod_directories import PodDirectories
from sluice_node_agent.device.mounts import leads_home, make_view, mounted_below, remove_view, remove_views, shows_home

DOCUMENT_MAX = 256 * 1024
"""Bytes. One of a pod with a device in each of 64 containers has some 30 KiB."""
_WHY_MAX = 300


class _Copy(msgspec.Struct, frozen=True, kw_only=True):
    record: msgspec.Raw = msgspec.Raw()
    checksum: str = ""


_pack = msgspec.json.Encoder().encode
_unpack: msgspec.json.Decoder[_Copy] = msgspec.json.Decoder(_Copy)
_unpack_record: msgspec.json.Decoder[TicketRecord] = msgspec.json.Decoder(TicketRecord)


def pack(order: MakeTicket) -> bytes:
    record = _pack(order.record)
    said = {
        "allocation": order.allocation,
        "owner": order.owner,
        "containers": [_told(each) for each in order.containers],
        "record": msgspec.Raw(record),
        "checksum": _sum(record),
    }
    return _pack(said) + b"\n"


def _told(container: ContainerDevices) -> dict[str, Any]:
    said: dict[str, Any] = msgspec.to_builtins(container)
    del said["driver_capabilities"]
    return said


def unpack(document: bytes) -> TicketRecord | str:
    """The copy of the record in a document, or why there is none that can be trusted."""
    if len(document) > DOCUMENT_MAX:
        return f"it is larger than {DOCUMENT_MAX} bytes"
    try:
        copy = _unpack.decode(document)
        record = bytes(copy.record)
        if not record:
            return "it was written by a version that kept no record in tickets"
        if copy.checksum != _sum(record):
            return "its record does not match its checksum"
        return _unpack_record.decode(record)
    except NOT_READABLE as error:
        return f"it holds no record that this version knows: {shorten(str(error), _WHY_MAX)}"


def _sum(record: bytes) -> str:
    return f"{zlib.crc32(record):08x}"


_DIRECTORY_MODE = 0o711
"""A container's user can pass, and finds no name that it does not know."""
_FILE_MODE = 0o600
_DOCUMENT = "slice.json"


class Tickets:
    """The tickets of one node. Calls block briefly and raise OSError."""

    def __init__(
        self, directory: Path, sources: PodDirectories | None = None, *, mounts: Path = Path("/proc/self/mountinfo")
    ) -> None:
        """Tickets of pods are in `sources`, if given, others in `directory`. `mounts` is a mountinfo (proc(5))."""
        self._directory = directory
        self._sources = sources
        self._mounts = mounts

    @property
    def shared(self) -> bool:
        """Whether other processes use the directories too, so that `make` and `remove` may wait for them."""
        return self._sources is not None

    def names(self) -> tuple[str, ...]:
        """All tickets, sorted, also those that were being created or removed when an agent ended."""
        found = {path.name.removeprefix(".") for folder in self._folders() for path in _listed(folder)}
        return tuple(sorted(name for name in found if not name.startswith(SHARE_PREFIX)))

    def read(self) -> tuple[FoundTicket, ...]:
        """The content of all tickets, in the order of `names`. A bad one does not hide the others."""
        found: dict[str, FoundTicket] = {}
        for folder in self._folders():
            for path in _listed(folder):
                name = path.name.removeprefix(".")
                if name.startswith(SHARE_PREFIX):
                    continue
                is_twice = name in found
                read = _read(path, owner=folder.name if folder != self._directory else "")
                found[name] = FoundTicket(name, problem="it is there twice") if is_twice else read
        return tuple(found[name] for name in sorted(found))

    def clear(self, boot_id: str) -> tuple[str, ...]:
        """Remove the tickets of other boots, whose devices are gone: they must not start a container. Returns them."""
        old = [each.ticket for each in self.read() if each.record is not None and each.record.boot_id != boot_id]
        for ticket in old:
            self.remove(ticket)
        return tuple(old)

    def make(self, order: MakeTicket) -> None:
        """Create a ticket, atomically. Of an existing one only what is wrong is created again."""
        ticket = order.ticket
        if not is_ticket_name(ticket) or ticket.startswith(SHARE_PREFIX):
            raise OSError(errno.EINVAL, f"{ticket!r} is no ticket's name")
        if self._sources is None or not _is_of_pod(order):
            self._directory.mkdir(parents=True, exist_ok=True)
            self._make_in(self._directory, order, _link)
            return
        with self._sources.locked():
            self._make_in(self._sources.make(order.owner), order, self._show)

    def wrong_of(self, orders: Iterable[MakeTicket]) -> tuple[str, ...]:
        return tuple(order.ticket for order in orders if not self._is_right(order))

    def remove(self, ticket: str) -> None:
        """Remove a ticket. Its name goes first: no container can start with half of one."""
        if not ticket or ticket.startswith(".") or "/" in ticket:
            raise OSError(errno.EINVAL, f"{ticket!r} is no ticket's name")
        self._remove_from(self._directory, ticket)
        if self._sources is None:
            return
        with self._sources.locked():
            for folder in self._sources.all():
                if os.path.lexists(folder / ticket) or os.path.lexists(folder / f".{ticket}"):
                    self._remove_from(folder, ticket)
                    self._sources.release(folder.name)

    def _folders(self) -> list[Path]:
        return [self._directory, *(self._sources.all() if self._sources is not None else ())]

    def _show(self, draft: Path, ticket: str, sharing: Iterable[ContainerDevices]) -> None:
        assert self._sources is not None
        for container in sharing:
            _check_name(container)
            place = draft.parent / ticket_of(ticket, container)
            if not shows_home(place, container):
                remove_view(place)  # the view of a home that is gone
                make_view(place, container, aside=self._sources.aside)

    def _make_in(self, folder: Path, order: MakeTicket, for_shares: "ForShares") -> None:
        place, draft = folder / order.ticket, folder / f".{order.ticket}"
        sharing = _sharing(order)
        if place.is_dir():
            _say(place, order)
            for_shares(place, order.ticket, sharing)
            return
        self._remove_from(folder, order.ticket)
        _make_directory(draft)
        _say(draft, order)
        for_shares(draft, order.ticket, sharing)
        draft.rename(place)

    def _is_right(self, order: MakeTicket) -> bool:
        in_volume = self._sources is not None and _is_of_pod(order)
        folder = self._sources.root / order.owner if self._sources is not None and in_volume else self._directory
        place = folder / order.ticket
        try:
            if (place / _DOCUMENT).read_bytes() != pack(order):
                return False
        except (FileNotFoundError, NotADirectoryError):
            return False
        sharing = _sharing(order)
        if in_volume:
            return all(shows_home(folder / ticket_of(order.ticket, container), container) for container in sharing)
        return all(leads_home(place / container.container, container) for container in sharing)

    def _remove_from(self, folder: Path, ticket: str) -> None:
        place, draft = folder / ticket, folder / f".{ticket}"
        if place.is_dir():
            self._clear(draft)
            place.rename(draft)
        if folder != self._directory:
            remove_views(folder, ticket)
        self._clear(draft)

    def _clear(self, draft: Path) -> None:
        """Remove a directory that is not a ticket (any more), unless something is mounted in it."""
        if not os.path.lexists(draft):
            return
        if found := mounted_below(draft, self._mounts):
            raise OSError(errno.EBUSY, f"something is mounted at {found[0]}, so the ticket was left alone")
        shutil.rmtree(draft)  # unlinks links, and follows none


def _is_of_pod(order: MakeTicket) -> bool:
    """Whether containers mount it from their pod's volume. What goes through ResourceClaims has it as a proof only."""
    return is_pod_uid(order.owner) and not order.record.booking.resource_claims


def _sharing(order: MakeTicket) -> list[ContainerDevices]:
    if order.record.booking.resource_claims:
        return []
    return [container for container in order.containers if container.mps_pipe_directory]


ForShares = Callable[[Path, str, Iterable[ContainerDevices]], None]
"""Gives containers with shares their daemons' directories: from the draft of the ticket, its name, and them."""


def _listed(folder: Path) -> list[Path]:
    """A directory's entries; none if it does not exist: the CSI driver may remove a pod's at any time."""
    try:
        return list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _say(folder: Path, order: MakeTicket) -> None:
    """Write its document atomically; after a resize with the new sizes."""
    draft = folder / f".{_DOCUMENT}"
    draft.write_bytes(pack(order))
    draft.chmod(_FILE_MODE)
    draft.rename(folder / _DOCUMENT)


def _read(ticket: Path, *, owner: str) -> FoundTicket:
    name = ticket.name.removeprefix(".")
    if ticket.name != name:
        return FoundTicket(name, problem="it was being made or removed", is_half=True)
    try:
        descriptor = os.open(ticket / _DOCUMENT, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as document:
            record = unpack(document.read(DOCUMENT_MAX + 1))
    except OSError as error:
        return FoundTicket(name, problem=f"it cannot be read: {error.strerror}")
    if isinstance(record, str):
        return FoundTicket(name, problem=record)
    if owner and record.booking.owner != owner:
        return FoundTicket(name, problem=f"it is of pod {record.booking.owner}, and in the directory of pod {owner}")
    return FoundTicket(name, record)


def _link(draft: Path, _ticket: str, sharing: Iterable[ContainerDevices]) -> None:
    for container in sharing:
        _check_name(container)
        place = draft / container.container
        if leads_home(place, container):
            continue
        if place.is_dir():
            shutil.rmtree(place)  # unlinks links, and follows none
        _make_directory(place)
        for name, target in ((PIPE, container.mps_pipe_directory), (LOG, container.mps_log_directory)):
            (place / name).symlink_to(target, target_is_directory=True)


def _check_name(container: ContainerDevices) -> None:
    if not container.container or container.container.startswith(".") or "/" in container.container:
        raise OSError(errno.EINVAL, f"{container.container!r} is no container's name")


def _make_directory(directory: Path) -> None:
    directory.mkdir()
    directory.chmod(_DIRECTORY_MODE)  # regardless of the umask
