"""
`sluice cordon`, `uncordon`, `drain`: publish what of a node is not to be used; the allocator reads it and acts.

A drain asks before it evicts anything, and only watches afterwards: pods leave through the eviction API, and a pod that
may not be evicted yet stays until it may.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from sluice.contracts.bus import subjects
from sluice.contracts.ids import GpuUuid, NodeName, RunId
from sluice.contracts.messages import AnyMessage, Cordoned
from sluice.runtime.bus import Bus
from sluice_console.core.documents import CordonDocument, DrainedPodDocument
from sluice_console.core.fleet.fleet_state import FleetState
from sluice_console.core.operate.cordons import (
    CordonError,
    UnknownTargetError,
    check_by_hand,
    cordon_word,
    named_gpus,
    pods_on,
    uncordon_word,
)
from sluice_console.shell.cli_options import UsageError
from sluice_console.shell.errors import CommandError, NotFoundError
from sluice_console.shell.live.connect import connected
from sluice_console.shell.live.live_fleet import LiveFleet, NotAnsweringError, following, read_fleet_state
from sluice_console.shell.operate.guarded_write import update_guarded
from sluice_console.shell.output.formats import OutputFormat, print_document
from sluice_console.shell.output.printer import say as tell
from sluice_console.shell.output.printer import write_lines

EXIT_FAILED = 1
EXIT_STILL_THERE = 7
UNCORDONED_TTL_S = 4 * 3600
"""How long an `Uncordoned` stays: as long as other final messages (PROTOCOL W5)."""
SHOWN_MAX = 50
"""Pods listed at most; a node has some hundreds."""


@dataclass(frozen=True, slots=True)
class CordonTarget:
    """The arguments: a node, some of its GPUs by UUID or index (all if none is named), and the reason."""

    node: NodeName
    gpus: tuple[str, ...] = ()
    why: str = ""
    take_over: bool = False
    """Also change what a limits file sets for the node."""


async def cordon(url: str, target: CordonTarget, *, form: OutputFormat, run: RunId) -> int:
    """`sluice cordon`: place nothing new there; running pods stay."""
    return await _change(url, target, _cordoning(target, drain=False), form=form, run=run)


async def uncordon(url: str, target: CordonTarget, *, form: OutputFormat, run: RunId) -> int:
    """`sluice uncordon`: use it again, and withdraw eviction orders."""

    def word(last: AnyMessage | None, gpus: tuple[GpuUuid, ...]) -> AnyMessage:
        return uncordon_word(target.node, last, gpus)

    return await _change(url, target, word, form=form, run=run, ttl_s=UNCORDONED_TTL_S)


async def drain(
    url: str,
    target: CordonTarget,
    *,
    yes: bool,
    wait_s: float | None,
    form: OutputFormat,
    run: RunId,
    ask: Callable[[str], bool],
) -> int:
    """`sluice drain`: place nothing new there, and evict the pods there.

    `ask` gets a confirmation, unless `yes`. With `wait_s` it waits at most so long until all pods have left."""
    try:
        if not yes and not await _person_agrees(url, target, ask):
            return EXIT_FAILED
        async with connected(url) as bus:
            gpus, there = await _who_is_there(bus, target)
            said = await _say(bus, target, gpus, _cordoning(target, drain=True), run=run)
            left = there
            if wait_s is not None:
                left = await wait_until_left(bus, target.node, gpus, wait_s)
    except CordonError as error:
        raise _wrong(error) from error
    print_document(_document(target.node, said, left), form, _show)
    return EXIT_STILL_THERE if left and wait_s is not None else 0


async def _person_agrees(url: str, target: CordonTarget, ask: Callable[[str], bool]) -> bool:
    """Whether there is no pod, or the operator confirms the evictions.

    No connection is open during the question: the server closes silent ones."""
    async with connected(url) as bus:
        _, there = await _who_is_there(bus, target)
    if not there:
        return True
    tell(_lines(there, there))
    return ask(f"evict {_pods(there)} from {target.node}?")


async def _who_is_there(bus: Bus, target: CordonTarget) -> tuple[tuple[GpuUuid, ...], tuple[DrainedPodDocument, ...]]:
    """The named GPUs, and the pods on them. Raises CordonError if a limits file sets the cordon."""
    fleet_state = await read_fleet_state(bus)
    gpus = named_gpus(fleet_state, target.node, target.gpus)
    check_by_hand(fleet_state.at("cordon", Cordoned, target.node), take_over=target.take_over)
    return gpus, pods_on(fleet_state, target.node, gpus)


Word = Callable[[AnyMessage | None, tuple[GpuUuid, ...]], AnyMessage]


def _cordoning(target: CordonTarget, *, drain: bool) -> Word:
    def word(last: AnyMessage | None, gpus: tuple[GpuUuid, ...]) -> AnyMessage:
        return cordon_word(target.node, last, gpus, why=target.why, drain=drain)

    return word


async def _change(
    url: str, target: CordonTarget, word: Word, *, form: OutputFormat, run: RunId, ttl_s: int | None = None
) -> int:
    async with connected(url) as bus:
        fleet_state = await read_fleet_state(bus)
        try:
            gpus = named_gpus(fleet_state, target.node, target.gpus)
            said = await _say(bus, target, gpus, word, run=run, ttl_s=ttl_s)
        except CordonError as error:
            raise _wrong(error) from error
        of = tuple(said.gpus) if isinstance(said, Cordoned) else gpus
        print_document(_document(target.node, said, pods_on(fleet_state, target.node, of)), form, _show)
        return 0


async def _say(
    bus: Bus, target: CordonTarget, gpus: tuple[GpuUuid, ...], word: Word, *, run: RunId, ttl_s: int | None = None
) -> AnyMessage:
    def word_after(last: AnyMessage | None) -> AnyMessage:
        check_by_hand(last, take_over=target.take_over)
        return word(last, gpus)

    return await update_guarded(bus, subjects.cordon(target.node), word_after, run=run, ttl_s=ttl_s)


async def wait_until_left(
    bus: Bus, node: NodeName, gpus: tuple[GpuUuid, ...], wait_s: float
) -> tuple[DrainedPodDocument, ...]:
    """The pods still there after `wait_s`; returns as soon as all have left. Prints each change.

    On Ctrl-C it prints that the drain goes on."""
    try:
        async with following(bus) as live:
            try:
                await live.until(_Progress(node, gpus), within_s=wait_s, what="all pods to leave")
            except NotAnsweringError:
                return _left(live, node, gpus)
    except asyncio.CancelledError:
        tell([f"{node} is still being drained; `sluice uncordon {node}` ends that"])
        raise
    return ()


@dataclass(slots=True)
class _Progress:
    """Whether all pods have left; prints how many remain, and those whose state changed."""

    node: NodeName
    gpus: tuple[GpuUuid, ...]
    _last: tuple[DrainedPodDocument, ...] = ()

    def __call__(self, fleet_state: FleetState) -> bool:
        """Check the fleet state once."""
        there = pods_on(fleet_state, self.node, self.gpus)
        if there and there != self._last:
            tell(_lines(there, tuple(pod for pod in there if pod not in self._last)))
        self._last = there
        return not there


def _left(live: LiveFleet, node: NodeName, gpus: tuple[GpuUuid, ...]) -> tuple[DrainedPodDocument, ...]:
    return pods_on(live.fleet_state, node, gpus)


def _document(node: NodeName, said: AnyMessage, there: tuple[DrainedPodDocument, ...]) -> CordonDocument:
    if not isinstance(said, Cordoned):
        return CordonDocument(node=node, cordoned=False, pods=there)
    return CordonDocument(node=node, cordoned=True, gpus=tuple(said.gpus), why=said.why, drain=said.drain, pods=there)


def _show(document: CordonDocument) -> None:
    how = "may be used again"
    if document.cordoned:
        how = ("is drained" if document.drain else "is cordoned") + (f": {document.why}" if document.why else "")
    what = f"{document.node} ({', '.join(document.gpus)})" if document.gpus else document.node
    write_lines([f"{what} {how}", *(_lines(document.pods, document.pods) if document.cordoned else [])])


def _lines(there: tuple[DrainedPodDocument, ...], shown: tuple[DrainedPodDocument, ...]) -> list[str]:
    """How many pods are there, and those to be shown, a line each."""
    if not there:
        return ["no pod is there"]
    lines = [f"  {pod.namespace}/{pod.name}  {pod.state}{f': {pod.message}' if pod.message else ''}" for pod in shown]
    more = [f"  and {len(lines) - SHOWN_MAX} more"] if len(lines) > SHOWN_MAX else []
    return [f"{_pods(there)} there{':' if lines else ''}", *lines[:SHOWN_MAX], *more]


def _pods(pods: tuple[DrainedPodDocument, ...]) -> str:
    return f"{len(pods)} pod{'s' if len(pods) != 1 else ''}"


def _wrong(error: CordonError) -> CommandError:
    return (NotFoundError if isinstance(error, UnknownTargetError) else UsageError)(str(error))
