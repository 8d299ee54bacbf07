"""
Stories of single requests for the page: reads only the history of the request's own subjects.

`sluice explain` reads the whole history once for a waiting user. A server open to many clients cannot, so a story's
cost depends on its request, few are read at once, and each has a time limit.
"""

import asyncio
from collections.abc import Iterable
from contextlib import aclosing

from sluice.contracts.bus.codec import Undecodable
from sluice.contracts.bus.subjects import HISTORY_PREFIX, SubjectError, guarded
from sluice.contracts.messages import Bound
from sluice.runtime.bus import BusError
from sluice.runtime.nats.history import NatsHistory, open_history
from sluice_console.core.documents import PodDocument, StoryDocument
from sluice_console.core.history.sentences import HistoryMessage
from sluice_console.core.history.timeline import steps_of
from sluice_console.core.history.waterfall import WaterfallDocument, waterfall
from sluice_console.shell.live.connect import user_of_the_bus

AT_ONCE = 4
WITHIN_S = 10.0
WORDS_MAX = 5_000
"""Messages per story: of a pod that waits for weeks the first ones are shown."""
_OF_REQUESTS = ("request", "binding", "waiting", "eviction", "evicted")


class Stories:
    """Reads stories, a few at once."""

    def __init__(self, url: str) -> None:
        """The broker at `url`, with credentials from the environment."""
        self._url = url
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def of(self, pod: PodDocument) -> StoryDocument:
        """The story of one request. Raises BusError, and TimeoutError if it takes too long."""
        async with asyncio.timeout(WITHIN_S), self._turns:
            return StoryDocument(pod=pod, steps=steps_of(pod.request, await self._words(pod)))

    async def trace_of(self, pod: PodDocument) -> WaterfallDocument:
        """The waterfall of one request. Raises BusError, and TimeoutError if it takes too long."""
        async with asyncio.timeout(WITHIN_S), self._turns:
            return waterfall(pod, await self._words(pod))

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
