"""`gpus`, `pods`, `explain`, `events`: read the bus once (or follow it) and print."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING

from sluice.contracts.bus.subjects import HISTORY_PREFIX
from sluice.contracts.messages import AllocationRequested, RequestRejected
from sluice.runtime.bus import BusError
from sluice_console.core.documents import Document, PodDocument, PodsDocument, StandingDocument, StoryDocument
from sluice_console.core.fleet.filters import WITHOUT_SLICE
from sluice_console.core.fleet.fleet_state import FleetState
from sluice_console.core.fleet.pending_releases import being_freed
from sluice_console.core.fleet.pods import pods_document
from sluice_console.core.fleet.usage import UsagesDocument, silent_lines, use_by_request
from sluice_console.core.history.ended import ended_pod, named_by
from sluice_console.core.history.events import EventDocument, event_document
from sluice_console.core.history.sentences import HistoryMessage, RequestNames
from sluice_console.core.history.timeline import evicted_before, steps_of
from sluice_console.core.output.sanitize import sanitize
from sluice_console.core.simulate.answers import standing
from sluice_console.shell.errors import NotFoundError
from sluice_console.shell.inspect.nodes import HISTORY_WITHIN_S, IdleSince
from sluice_console.shell.inspect.views import UNASKED, FleetView
from sluice_console.shell.live.connect import StoredTimes, connected
from sluice_console.shell.live.history import all_history, follow_history
from sluice_console.shell.live.live_fleet import read_fleet_state
from sluice_console.shell.output.answer import Answer, read_by_someone
from sluice_console.shell.output.formats import OutputFormat, as_text, is_for_programs
from sluice_console.shell.output.printer import console, say, short_time, show_pods, show_story

if TYPE_CHECKING:
    from sluice_console.shell.inspect.usage import Ask

StoryTeller = Callable[[str, str, FleetState, list[HistoryMessage]], Awaitable[Answer]]
"""`explain` or `trace`: server, request, last values, the whole history."""
PastRequests = dict[str, AllocationRequested | RequestRejected]
"""By subject."""
CHOICES_MAX = 20
"""Pods listed where one has to be named."""
STANDING_WITHIN_S = 2.0
"""How long a story waits for the allocator's answer."""


async def fleet_state_at(url: str) -> FleetState:
    """The last values at one server, with their times. Raises BusError, NotAnsweringError."""
    times = StoredTimes()
    async with connected(url, times=times) as bus:
        return replace(await read_fleet_state(bus), stored_at=times.at)


async def look(url: str, looked: FleetView, form: OutputFormat) -> int:
    """The present state of any view. Raises BusError, NotAnsweringError."""
    fleet_state = await fleet_state_at(url)
    if looked.with_ended:
        fleet_state.past |= await past_requests(url)
    ask = asking(looked, form)
    usages = await ask(fleet_state) if ask is not None else None
    since = await IdleSince(url).of(fleet_state) if looked.view == "nodes" else {}
    view_answer(looked, fleet_state, since, usages, form).print(form)
    if usages is not None and not (looked.view == "usage" and is_for_programs(form)):  # the document names them
        say(silent_lines(usages))
    return 0


def view_answer(
    looked: FleetView,
    fleet_state: FleetState,
    since: dict[str, str],
    usages: UsagesDocument | None,
    form: OutputFormat,
) -> Answer:
    """A view of a fleet's state."""

    def show(document: Document) -> None:
        looked.show(console(), document, fleet_state, wide=form == "wide", usages=usages)

    beside = use_by_request(usages) if looked.view == "pods" and usages is not None else None
    return Answer((looked.document(fleet_state, since, usages or UNASKED),), show, beside=beside)


def asking(looked: FleetView, form: OutputFormat) -> "Ask | None":
    """How to ask agents what the view shows of usage; None if nothing."""
    if not looked.needs_usage and not (looked.view == "pods" and form == "wide"):
        return None
    from sluice_console.shell.inspect.usage import usages_at, usages_or_why  # noqa: PLC0415 - imports gRPC

    return usages_at if looked.needs_usage else usages_or_why


async def story_now(url: str, wanted: str, tell: StoryTeller) -> Answer:
    """What it tells now. Raises BusError, NotFoundError."""
    return await tell(url, wanted, await fleet_state_at(url), await all_history(url))


async def explain(url: str, wanted: str, fleet_state: FleetState, history: list[HistoryMessage]) -> Answer:
    """The story of every request that `wanted` matches. Raises NotFoundError."""
    pods = with_past(pods_document(fleet_state, with_ended=True), history)
    stories = []
    for pod in found_among(pods, wanted):
        now = await _standing(url, pod)
        story = StoryDocument(
            pod=pod,
            earlier=evicted_before(pod, pods, history),
            steps=steps_of(pod.request, history),
            standing=now,
            freeing=being_freed(fleet_state, now),
        )
        stories.append(story)
    return Answer(tuple(stories), lambda story: show_story(console(), story))


async def choices(url: str, verb: str, form: OutputFormat) -> Answer:
    """`sluice explain` of no pod: those that it can explain, waiting ones if there are some, the latest first."""
    pods = pods_document(await fleet_state_at(url)).pods
    waiting = [pod for pod in pods if pod.state in WITHOUT_SLICE]
    latest = sorted(waiting or pods, key=lambda pod: pod.asked_at, reverse=True)
    more = f"{len(latest) - CHOICES_MAX} more: `sluice pods`; " if len(latest) > CHOICES_MAX else ""
    note = f"{more}`sluice {verb} NAMESPACE/NAME` for one, ended pods too (`sluice pods --all`)"
    return Answer(
        (PodsDocument(pods=tuple(latest[:CHOICES_MAX])),),
        lambda shown: show_pods(console(), shown),
        notes=() if is_for_programs(form) else (note,),
    )


def found_among(pods: list[PodDocument], wanted: str) -> list[PodDocument]:
    """The requests that `wanted` matches. Raises NotFoundError if there is none."""
    found = matching(pods, wanted)
    if not found:
        raise NotFoundError(
            f"there is no request {wanted!r}: not as an id, a pod name, namespace/name or file; "
            "`sluice pods --all` lists them"
        )
    return found


async def _standing(url: str, pod: PodDocument) -> StandingDocument | None:
    """A live request's state in the allocator; None if it does not answer, or the bus does not."""
    if pod.state == "ended":
        return None
    from sluice.contracts.pb.allocator_pb2 import ExplainRequest  # noqa: PLC0415 - of gRPC only this story needs anything
    from sluice_console.shell.live.allocator_client import NotAskableError, allocator  # noqa: PLC0415

    try:
        async with connected(url) as bus, allocator(bus) as asked:
            request = ExplainRequest(request=pod.request)
            return standing(await asked.Explain(request, timeout=STANDING_WITHIN_S))
    except (BusError, NotAskableError):
        return None


async def past_requests(url: str) -> PastRequests:
    """What every request of the history asked for, by subject; empty, with a line, if it cannot be read in time."""
    why = f"takes over {HISTORY_WITHIN_S:g} s to read"
    try:
        async with asyncio.timeout(HISTORY_WITHIN_S):
            history = await all_history(url, (f"{HISTORY_PREFIX}sluice.request.>",))
        return {
            happened.subject.removeprefix(HISTORY_PREFIX): happened.envelope.message
            for happened in history
            if isinstance(happened.envelope.message, AllocationRequested | RequestRejected)
        }
    except TimeoutError:
        pass
    except BusError as error:
        why = f"cannot be read: {error}"
    say([f"the history {why}; ended pods are shown without their names"])
    return {}


def with_past(known: PodsDocument, history: list[HistoryMessage]) -> list[PodDocument]:
    """The pods by their first request; names and files of ended ones come from the history."""
    past = {
        happened.envelope.request: happened.envelope.message
        for happened in history
        if isinstance(happened.envelope.message, AllocationRequested | RequestRejected)
    }
    began = {request: number for number, request in enumerate(past)}
    pods = []
    for pod in known.pods:
        asked = past.pop(pod.request, None)
        if asked is not None and not pod.origin:
            pods.append(named_by(pod, asked))
        else:
            pods.append(pod)
    pods += [ended_pod(request, asked) for request, asked in past.items() if request]
    return sorted(pods, key=lambda pod: began.get(pod.request, -1))


def matching(pods: list[PodDocument], wanted: str) -> list[PodDocument]:
    """The requests that `wanted` matches: an id, `namespace/name`, a pod name, or the end of a file's path.

    Live requests win over ended ones; of ended ones the last in `pods` wins."""
    found = [pod for pod in pods if pod.request == wanted]
    found = found or [pod for pod in pods if wanted in {f"{pod.namespace}/{pod.name}", pod.name}]
    found = found or [pod for pod in pods if _is_file(pod, wanted)]
    living = [pod for pod in found if pod.state != "ended"]
    return living or found[-1:]


def _is_file(pod: PodDocument, wanted: str) -> bool:
    if pod.origin in {"", f"{pod.namespace}/{pod.name}"}:  # a cluster's pod has no file, and its name was compared
        return False
    known, typed = (PurePath(path).parts for path in (pod.origin.split("#", maxsplit=1)[0], wanted))
    shared = min(len(known), len(typed))
    return pod.origin == wanted or (shared > 0 and known[-shared:] == typed[-shared:])


async def events(url: str, *, follow: bool, since_s: float, form: OutputFormat) -> int:
    """`sluice events`: one line per message of the history, or one document."""
    names = RequestNames()
    async with read_by_someone(), aclosing(follow_history(url, since_s=since_s, lost=_say_lost)) as batches:
        async for batch in batches:
            for recorded in batch:
                document = event_document(recorded.subject, recorded.envelope, names)
                if document is not None:
                    text = as_text(document, form, one_line=True) if is_for_programs(form) else event_line(document)
                    sys.stdout.write(text)
            sys.stdout.flush()
            if not batch and not follow:
                break
    return 0


def _say_lost(error: BusError) -> None:
    say([f"{error}; waiting for it"])


def event_line(event: EventDocument) -> str:
    """One message as a line: time, noun, subject, sentence."""
    if event.unreadable:
        line = f"{'':12}  {event.noun:9}  {event.subject}: {event.says}"
    else:
        line = f"{short_time(event.time)}  {event.noun:9}  {event.about}  {event.says}"
    return f"{sanitize(line)}\n"
