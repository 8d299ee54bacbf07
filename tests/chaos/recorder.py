"""
Records the messages of the bus, with the times at which the broker stored them, for the judges.

It reads the streams by sequence, without consumers, past all wires and past Sluice's own reading: what it writes down
is independent of what is judged. A broker that was killed may have forgotten the end of a stream and number again from
there, so after each loss of connection it reads the last messages again. It changes nothing.
"""

import asyncio
import json
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Self

import nats
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

STREAMS = ("BOOK", "STATE", "HISTORY")
KINDS = frozenset({"request", "ledger", "binding", "slice"})
"""What is judged. The rest is much, and says nothing of grants."""
BATCH = 256
POLL_S = 0.04
ANSWER_S = 1.0
STOP_S = 30.0
"""It waits for the answers that it has asked for."""
AGAIN = 500
"""So many messages of each stream are read again after a reconnect; known ones are passed over."""
KNOWN_MAX = 20_000
ORIGIN = "Sluice-Sequence"


@dataclass(frozen=True, slots=True)
class Word:
    """One message: when its stream stored it (unix s), the sequence at which it landed, and what it says."""

    at: float
    copy: bool
    """It was read from HISTORY: then `at` is a little late."""
    sequence: int
    subject: str
    operation: str
    message: dict


class Recorder:
    """Follows all streams at `urls` while it runs, as an async context, into the file."""

    def __init__(self, urls: list[str], file: Path, heard: Callable[[Word], None]) -> None:
        """`heard` is called with each message."""
        self._urls, self._file, self._heard = urls, file, heard
        self._next = dict.fromkeys(STREAMS, 1)
        self._known: OrderedDict[tuple[str, str, int, str], None] = OrderedDict()
        self._news = asyncio.Event()
        self._stopping = False

    async def __aenter__(self) -> Self:
        self._out = self._file.open("a", encoding="utf-8")
        self._client = await nats.connect(
            self._urls,
            connect_timeout=2,
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.1,
            ping_interval=1,
            max_outstanding_pings=2,
            pending_size=0,
            error_cb=_nothing,
            reconnected_cb=self._read_again,
        )
        self._task = asyncio.create_task(self._follow(), name="recorder")
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop: not by a cancellation, which the client swallows when it comes together with an answer."""
        self._stopping = True
        try:
            async with asyncio.timeout(STOP_S):
                await self._task
        finally:
            await self._client.close()
            self._out.close()

    async def until(self, condition: Callable[[], bool], within_s: float) -> bool:
        """Whether it becomes so within that time; asked after each message."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while not condition():
                    self._task.result() if self._task.done() else None
                    self._news.clear()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(POLL_S * 5):
                            await self._news.wait()
                return True
        return condition()

    # -- inside -------------------------------------------------------------------------------------------------------

    async def _read_again(self) -> None:
        for stream, next_one in self._next.items():
            self._next[stream] = max(1, next_one - AGAIN)

    async def _follow(self) -> None:
        while not self._stopping:
            for stream in STREAMS:
                with suppress(NatsError, TimeoutError, OSError):  # the broker is away: it is asked again
                    while await self._batch(stream) >= BATCH:
                        pass
            await asyncio.sleep(POLL_S)

    async def _batch(self, stream: str) -> int:
        inbox = self._client.new_inbox()
        answers = await self._client.subscribe(inbox)
        asked = {"seq": self._next[stream], "batch": BATCH, "next_by_subj": ">"}
        count = 0
        try:
            await self._client.publish(f"$JS.API.DIRECT.GET.{stream}", json.dumps(asked).encode(), reply=inbox)
            while True:
                message = await answers.next_msg(timeout=ANSWER_S)
                headers = message.headers or {}
                if headers.get("Status"):  # 204: that was all; 404: nothing there
                    return count
                count += 1
                self._take(stream, message, headers)
        finally:
            with suppress(NatsError, OSError):
                await answers.unsubscribe()

    def _take(self, stream: str, message: Msg, headers: dict[str, str]) -> None:
        sequence = int(headers["Nats-Sequence"])
        self._next[stream] = max(self._next[stream], sequence + 1)
        subject = headers["Nats-Subject"].removeprefix("hist.")
        if not message.data or subject.split(".")[1] not in KINDS:
            return
        envelope = json.loads(message.data)
        key = (stream, subject, sequence, envelope["operation"])
        if key in self._known:
            return
        self._known[key] = None
        if len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)
        word = Word(
            datetime.fromisoformat(headers["Nats-Time-Stamp"]).timestamp(),
            stream == "HISTORY",
            int(headers.get(ORIGIN, sequence)),
            subject,
            envelope["operation"],
            envelope["message"],
        )
        self._out.write(line_of(word))
        self._heard(word)
        self._news.set()


async def _nothing(_: Exception) -> None: ...


def line_of(word: Word) -> str:
    """As `read_words` reads it."""
    return json.dumps({name: getattr(word, name) for name in Word.__slots__}) + "\n"


def read_words(file: Path) -> list[Word]:
    """
    What was recorded, each message once, in the order in which the copies were stored.

    Of message and copy the former is taken, where it was read before it was overwritten, with the time of the copy:
    two streams have two clocks, and of two messages of one moment one may be known by its copy alone.
    """
    found: dict[tuple[str, int, str], Word] = {}
    copied: dict[tuple[str, int, str], float] = {}
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            word = Word(**json.loads(line))
            key = _key(word)
            if word.copy:
                copied[key] = min(word.at, copied.get(key, word.at))
            if key not in found or found[key].copy:
                found[key] = word
    return sorted(found.values(), key=lambda word: (copied.get(_key(word), word.at), word.sequence))


def _key(word: Word) -> tuple[str, int, str]:
    return word.subject, word.sequence, word.operation
