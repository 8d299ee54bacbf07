"""Follow one request on the bus: until it has its slice, and then whether it keeps it. Read-only."""

import asyncio
from collections.abc import Callable

from sluice.contracts.bus.events import BusEvent, Observed, ReadingStarted, Stream
from sluice.contracts.bus.subjects import binding, eviction, request
from sluice.contracts.ids import Incarnation, RequestId
from sluice.contracts.messages import AnyMessage, Bound, EvictionOrdered, RequestWithdrawn
from sluice.contracts.reasons import WaitReason
from sluice.runtime.bus import Bus
from sluice_console.core.documents import PodDocument
from sluice_console.core.fleet.fleet_state import FleetState
from sluice_console.core.fleet.pods import pods_document
from sluice_console.core.run_request import may_start, standing_text, why_not
from sluice_console.shell.live.live_fleet import NotAnsweringError, following
from sluice_console.shell.run.errors import RunError


async def slice_of(
    bus: Bus, file: str, *, within_s: float, progress: Callable[[str], None], nodes: int = 0
) -> PodDocument:
    """The pod of the manifest `file` once it has its slice. `progress` gets its state whenever that changes.

    Raises RunError if it is refused, has no slice after `within_s`, or can never be served by `nodes`, if those are all
    nodes there will be (0: others may join, so it waits)."""
    last: PodDocument | None = None

    def look(fleet_state: FleetState) -> PodDocument | None:
        nonlocal last
        last = next((pod for pod in pods_document(fleet_state).pods if pod.origin == file), None)
        if last is not None and (_is_hopeless(last, nodes) or may_start(fleet_state, last)):
            return last
        progress(standing_text(last))
        return None

    try:
        async with following(bus) as live:
            found = await live.until(look, within_s=within_s, what="a slice")
    except NotAnsweringError:
        raise RunError(
            f"no slice within {within_s:g} s: {standing_text(last)} (--wait-s waits longer; `sluice gpus` shows who "
            "has what)"
        ) from None
    if _is_hopeless(found, nodes):
        raise RunError(why_not(found))
    return found


def _is_hopeless(pod: PodDocument, nodes: int) -> bool:
    """Whether waiting is useless: refused, or not servable by any of all the nodes."""
    if pod.state == "refused":
        return True
    lead = pod.reasons[0] if pod.state == "waiting" and pod.reasons else None
    # Until the allocator has seen all nodes, its answer covers only the known ones.
    return lead is not None and lead.reason is WaitReason.NO_NODE_CAN_FIT and 0 < nodes <= lead.count


class HeldSlice:
    """A slice in use: whether it is kept, and its warnings, passed to `warn`."""

    def __init__(self, bound: PodDocument, warn: Callable[[str], None]) -> None:
        """Start from the binding."""
        self.request = RequestId(bound.request)
        self._warn = warn
        self._life = Incarnation("")
        self._told = set(bound.warnings)
        self._devices = bound.containers
        self._taken: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def until_taken_away(self, bus: Bus) -> str:
        """Why it is taken away, as soon as it is. Reads its own three subjects only."""
        of_state = (request(self.request).subject, eviction(self.request).subject)
        of_book = (binding(self.request).subject,)
        async with asyncio.TaskGroup() as tasks:
            readers = [
                tasks.create_task(self._follow(bus, Stream.STATE, of_state), name="follow the request"),
                tasks.create_task(self._follow(bus, Stream.BOOK, of_book), name="follow the binding"),
            ]
            why = await self._taken
            for reader in readers:
                reader.cancel()
        return why

    async def _follow(self, bus: Bus, stream: Stream, subjects: tuple[str, ...]) -> None:
        async for batch in bus.read(stream, subjects):
            for each in batch:
                self.hear(each)

    def hear(self, event: BusEvent) -> None:
        """Apply one message about it, or the bus incarnation of the next ones."""
        match event:
            case ReadingStarted(stream=Stream.STATE):
                self._life = event.incarnation
            case Observed():
                self._heard(event.entry.message)
            case _:
                pass

    def _heard(self, message: AnyMessage | None) -> None:
        match message:
            case EvictionOrdered() if message.incarnation in {"", self._life}:
                self._end(f"it is evicted: {message.cause}")
            case RequestWithdrawn():
                self._end(f"its request was ended ({message.cause})")
            case Bound():
                self._still(message)
            case _:
                pass

    def _end(self, why: str) -> None:
        if not self._taken.done():
            self._taken.set_result(why)

    def _still(self, bound: Bound) -> None:
        for warning in bound.warnings:
            if warning not in self._told:
                self._told.add(warning)
                self._warn(warning)
        if bound.containers != self._devices:
            self._devices = bound.containers
            self._warn("its slice was created again under another name; the running processes lost the device")
