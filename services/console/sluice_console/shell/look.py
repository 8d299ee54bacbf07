"""The commands that look: `gpus`, `pods`, `explain`, `events`. They read the bus once (or follow it) and print."""

import sys

import msgspec

from sluice.contracts.codec import Undecodable
from sluice.contracts.messages import AllocationRequested, RequestRejected
from sluice.contracts.pb.allocator_pb2 import ExplainRequest
from sluice.contracts.subjects import SubjectError, parse
from sluice.runtime.nats_history import EVERYTHING, Recorded, open_history
from sluice_console.core.documents import Document, PodDocument, PodsDocument, StandingDocument, StoryDocument
from sluice_console.core.gpus import gpus_document
from sluice_console.core.pods import pods_document
from sluice_console.core.simulated import standing
from sluice_console.core.steps import evicted_before, steps_of
from sluice_console.core.story import Happened, Names, sentence, whom
from sluice_console.core.world import World
from sluice_console.shell.allocator import NotAskableError, allocator
from sluice_console.shell.connect import connected, user_of_the_bus
from sluice_console.shell.live import read_world
from sluice_console.shell.present import console, short_time, show_gpus, show_pods, show_story

EXIT_NOT_FOUND = 4
STANDING_WITHIN_S = 2.0
"""How long a story waits for the allocator's present word."""


async def world_at(url: str) -> World:
    """The last values at one server. Raises BusError, NotAnsweringError."""
    async with connected(url) as bus:
        return await read_world(bus)


async def gpus(url: str, *, as_json: bool) -> int:
    """`sluice gpus`."""
    document = gpus_document(await world_at(url))
    if as_json:
        _print_json(document)
    else:
        show_gpus(console(), document)
    return 0


async def pods(url: str, *, as_json: bool, with_ended: bool) -> int:
    """`sluice pods`."""
    document = pods_document(await world_at(url), with_ended=with_ended)
    if as_json:
        _print_json(document)
    else:
        show_pods(console(), document)
    return 0


def _print_json(document: Document) -> None:
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n")


async def explain(url: str, wanted: str, *, as_json: bool) -> int:
    """`sluice explain`: everything that happened to the requests that `wanted` may mean."""
    known = pods_document(await world_at(url), with_ended=True)
    history = await _all_history(url)
    everybody = with_past(known, history)
    found = matching(everybody, wanted)
    if not found:
        sys.stderr.write(f"there is no request {wanted!r}: not as an id, a pod name, namespace/name or file\n")
        return EXIT_NOT_FOUND
    for pod in found:
        now = await _standing(url, pod)
        story = StoryDocument(
            pod=pod,
            earlier=evicted_before(pod, everybody, history),
            steps=steps_of(pod.request, history),
            standing=now,
        )
        if as_json:
            _print_json(story)
        else:
            show_story(console(), story)
    return 0


async def _standing(url: str, pod: PodDocument) -> StandingDocument | None:
    """How a living request stands in the allocator now. A story is told without it when no allocator answers."""
    if pod.state == "ended":
        return None
    try:
        async with connected(url) as bus, allocator(bus) as asked:
            request = ExplainRequest(request=pod.request)
            return standing(await asked.Explain(request, timeout=STANDING_WITHIN_S))
    except NotAskableError:
        return None


async def _all_history(url: str) -> list[Happened]:
    async with open_history(url, name="console", credentials=user_of_the_bus()) as history:
        return [happened async for batch in history.read() for happened in _readable(batch)]


def _readable(batch: list[Recorded]) -> list[Happened]:
    return [
        Happened(recorded.subject, recorded.envelope)
        for recorded in batch
        if not isinstance(recorded.envelope, Undecodable)
    ]


def with_past(known: PodsDocument, history: list[Happened]) -> list[PodDocument]:
    """The pods, with names and files of ended requests filled in from the history."""
    past = {
        happened.envelope.request: happened.envelope.message
        for happened in history
        if isinstance(happened.envelope.message, AllocationRequested | RequestRejected)
    }
    pods = []
    for pod in known.pods:
        asked = past.pop(pod.request, None)
        if asked is not None and not pod.origin:
            filled = {"namespace": asked.namespace, "name": asked.name, "origin": asked.origin}
            pods.append(msgspec.structs.replace(pod, **filled))
        else:
            pods.append(pod)
    return pods + [_long_gone(request, asked) for request, asked in past.items() if request]


def _long_gone(request: str, asked: AllocationRequested | RequestRejected) -> PodDocument:
    return PodDocument(
        request=request,
        namespace=asked.namespace,
        name=asked.name,
        origin=asked.origin,
        source=asked.source,
        state="ended",
        message="ended; only the history knows it",
        revision=asked.revision,
    )


def matching(pods: list[PodDocument], wanted: str) -> list[PodDocument]:
    """
    Which requests a person means by `wanted`: an id, `namespace/name`, a pod name, or a file (or the end of its path).

    Living requests win over ended ones; of ended ones the newest known is meant.
    """
    found = [pod for pod in pods if pod.request == wanted]
    found = found or [pod for pod in pods if wanted in {f"{pod.namespace}/{pod.name}", pod.name}]
    found = found or [pod for pod in pods if _is_file(pod.origin, wanted)]
    living = [pod for pod in found if pod.state != "ended"]
    return living or found[-1:]


def _is_file(origin: str, wanted: str) -> bool:
    file = wanted.rpartition("/")[2]
    return bool(origin) and (origin == wanted or origin.split("#", maxsplit=1)[0].rpartition("/")[2] == file)


async def events(url: str, *, follow: bool, since_s: float) -> int:
    """`sluice events`: a line per message of the history."""
    names = Names()
    async with open_history(url, name="console", credentials=user_of_the_bus()) as history:
        async for batch in history.read(filters=EVERYTHING, since_s=since_s, follow=follow):
            for recorded in batch:
                line = event_line(recorded, names)
                if line:
                    sys.stdout.write(line + "\n")
            sys.stdout.flush()
    return 0


def event_line(recorded: Recorded, names: Names) -> str:
    """One message as a line: time, noun, whom, what."""
    try:
        address = parse(recorded.subject)
    except SubjectError:
        return ""
    if isinstance(recorded.envelope, Undecodable):
        return f"{'':12}  {address.kind:9}  {recorded.subject}: cannot be read: {recorded.envelope.why}"
    envelope = recorded.envelope
    names.learn(envelope.request or address.key[0], envelope.message)
    about = whom(address.key, address.kind, envelope, names)
    return f"{short_time(envelope.time)}  {address.kind:9}  {about}  {sentence(envelope.message)}"
