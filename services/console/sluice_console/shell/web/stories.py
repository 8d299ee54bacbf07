"""
Stories of requests for the page, ended ones too: a story reads only the history of its request's own subjects.

`sluice explain` reads the whole history once for a waiting user. A server open to many clients cannot, so a story's
cost depends on its request, few are read at once, and each has a time limit. The list of ended pods reads the ledgers
of a day, once for all pages.
"""

import asyncio
from collections.abc import Iterable
from contextlib import aclosing

from sluice.contracts.bus.codec import Undecodable
from sluice.contracts.bus.subjects import HISTORY_PREFIX, SubjectError, guarded
from sluice.contracts.messages import AllocationRequested, Bound, RequestRejected
from sluice.runtime.bus import BusError
from sluice.runtime.nats.history import NatsHistory, open_history
from sluice_console.core.documents import PodDocument, StoryDocument
from sluice_console.core.history.ended import ENDED_MAX, EndedPodsDocument, ended_pod, ended_pods, named_by
from sluice_console.core.history.sentences import HistoryMessage
from sluice_console.core.history.timeline import steps_of
from sluice_console.core.history.waterfall import WaterfallDocument, waterfall
from sluice_console.shell.live.connect import user_of_the_bus
from sluice_console.shell.live.history import readable
from sluice_console.shell.web.answers import AnswerCache

AT_ONCE = 4
WITHIN_S = 10.0
WORDS_MAX = 5_000
"""Messages per story: of a pod that waits for weeks the first ones are shown."""
HOURS = (24, 72, 168)
"""How far back ended pods can be listed; the history is kept for a week."""
ENDED_WITHIN_S = 30.0
ENDED_COUNTS_FOR_S = 30.0
LEDGERS = f"{HISTORY_PREFIX}sluice.ledger.>"
LEDGER_WORDS_MAX = 200_000
"""Messages read for a list: some 60,000 pods."""
_OF_REQUESTS = ("request", "binding", "waiting", "eviction", "evicted")


class Stories:
    """Reads stories, a few at once."""

    def __init__(self, url: str) -> None:
        """The broker at `url`, with credentials from the environment."""
        self._url = url
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._ended = AnswerCache(self._read_ended, counts_for_s=ENDED_COUNTS_FOR_S, kept_max=len(HOURS), at_once=1)

    async def of(self, pod: PodDocument) -> StoryDocument:
        """The story of one request. Raises BusError, and TimeoutError if it takes too long."""
        async with asyncio.timeout(WITHIN_S), self._turns:
            return StoryDocument(pod=pod, steps=steps_of(pod.request, await self._words(pod)))

    async def trace_of(self, pod: PodDocument) -> WaterfallDocument:
        """The waterfall of one request. Raises BusError, and TimeoutError if it takes too long."""
        async with asyncio.timeout(WITHIN_S), self._turns:
            return waterfall(pod, await self._words(pod))

    async def past(self, request: str, known: PodDocument | None) -> PodDocument | None:
        """A pod that the bus has lost, or lost the name of, by its request in the history; None if that has none.

        Raises BusError, TimeoutError."""
        if known is not None and (known.state != "ended" or known.name):
            return known
        async with asyncio.timeout(WITHIN_S), self._turns:
            try:
                own = HISTORY_PREFIX + guarded("request", request).subject
            except SubjectError:
                return known
            async with open_history(self._url, name="console", credentials=user_of_the_bus(self._url)) as history:
                words = [happened.envelope.message for _, happened in await _read(history, (own,))]
        asked = next((each for each in words if isinstance(each, AllocationRequested | RequestRejected)), None)
        if asked is None:
            return known
        return named_by(known, asked) if known is not None else ended_pod(request, asked)

    async def ended(self, hours: int) -> EndedPodsDocument:
        """Pods that ended in the last `hours`, of `HOURS`. Raises BusError, TimeoutError."""
        return await self._ended.of(hours, None)

    async def _read_ended(self, hours: int, _: None) -> EndedPodsDocument:
        found: list[HistoryMessage] = []
        who = user_of_the_bus(self._url)
        async with (
            asyncio.timeout(ENDED_WITHIN_S),
            open_history(self._url, name="console", credentials=who) as history,
            aclosing(history.read(filters=(LEDGERS,), since_s=hours * 3600.0)) as batches,
        ):
            async for batch in batches:
                found += readable(batch)
                if len(found) >= LEDGER_WORDS_MAX:
                    break
        pods = ended_pods(found)
        is_cut = len(pods) > ENDED_MAX or len(found) >= LEDGER_WORDS_MAX
        return EndedPodsDocument(pods=tuple(pods[:ENDED_MAX]), cut=is_cut)

    async def _words(self, pod: PodDocument) -> list[HistoryMessage]:
        try:
            own = tuple(HISTORY_PREFIX + guarded(kind, pod.request).subject for kind in _OF_REQUESTS)
        except SubjectError as error:
            raise BusError(str(error)) from error
        who = user_of_the_bus(self._url)
        async with open_history(self._url, name="console", credentials=who) as history:
            found = await _read(history, own)
            places = {
                (str(message.node), str(message.allocation))
                for message in (happened.envelope.message for _, happened in found)
                if isinstance(message, Bound)
            }
            if pod.node and pod.allocation:
                places.add((pod.node, pod.allocation))
            found += await _read(history, tuple(_of_places(places)))
        return [happened for _, happened in sorted(found, key=lambda each: each[0])]


def _of_places(places: Iterable[tuple[str, str]]) -> list[str]:
    kinds = ("ledger", "slice")
    return [HISTORY_PREFIX + guarded(kind, *place).subject for place in sorted(places) for kind in kinds]


async def _read(history: NatsHistory, filters: tuple[str, ...]) -> list[tuple[int, HistoryMessage]]:
    """The messages under `filters`, each with its position in the history."""
    found: list[tuple[int, HistoryMessage]] = []
    if not filters:
        return found
    async with aclosing(history.read(filters=filters)) as batches:
        async for batch in batches:
            found += [
                (recorded.sequence, HistoryMessage(recorded.subject, recorded.envelope, recorded.headers))
                for recorded in batch
                if not isinstance(recorded.envelope, Undecodable)
            ]
            if len(found) >= WORDS_MAX:
                break
    return found[:WORDS_MAX]
