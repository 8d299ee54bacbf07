"""An operator who writes a limits file: the process that publishes it, and what must follow.

Nothing is ever published in the file's name that no version of it has; and when all is calm the bus has what the file
has, and nothing else in its name. The judges of quotas and cordons check that the limits hold once they are published
again.
"""

from random import Random

from msgspec import structs
from simulation.judges.books import Books
from simulation.judges.cordons import CordonSaid
from simulation.judges.quotas import QuotaSaid
from simulation.world.broker import Broker
from simulation.world.host import Core, Host
from simulation.world.trace import Trace
from simulation.world.virtual_clock import VirtualClock

from sluice.contracts.bus.events import Stream, Write
from sluice.contracts.ids import NodeName, RunId, SourceName
from sluice.contracts.messages import Cordoned, QuotaSet
from sluice_pod_watcher.core.folder.events import WriteLogLine
from sluice_pod_watcher.core.limits_source import READS, LimitsPublished, LimitsRead, LimitsSource

FILE_SEEDS = 0.5
"""In so many of the seeds with an operator the limits are in a file."""
SOURCE = SourceName("folder")
NOTICED_S = 2.0
"""An edit is noticed by the second look at the file that shows it."""
FAULTS_MAX = 3
"""Crashes, pauses and lost connections of that process in one seed."""

Said = QuotaSaid | CordonSaid


class LimitsHost(Host):
    """The process that says what a file says; the file outlives it."""

    kind = "limits"

    def __init__(self, closing_ttl_s: int, clockwork: VirtualClock, broker: Broker, dice: Random, trace: Trace) -> None:
        super().__init__("limits", clockwork, broker, dice, trace)
        self.text = ""
        self._closing_ttl_s = closing_ttl_s

    def make_core(self, run: RunId) -> Core:
        return LimitsSource(run, SOURCE, origin="limits.toml", closing_ttl_s=self._closing_ttl_s)

    def readings(self) -> list[tuple[Stream, tuple[str, ...], NodeName | None]]:
        """What the core says that it has to read."""
        return [(stream, filters, None) for stream, filters in READS]

    def begin(self) -> None:
        self.later(NOTICED_S * self.dice.random(), self._read)

    def edited(self, text: str) -> None:
        self.text = text
        self.later(NOTICED_S * self.dice.random(), self._read)

    def execute(self, instruction: object) -> None:
        """Notify, unobserved here; and the pods of this world do not wait for limits."""
        assert isinstance(instruction, WriteLogLine | LimitsPublished), instruction

    def _read(self) -> None:
        self.offer(LimitsRead(self.text))


class LimitsFile:
    """The operator with the file, and the judge of what is published in its name."""

    def __init__(self, host: LimitsHost, books: Books) -> None:
        self._host = host
        self._books = books
        self._meant: dict[str, Said] = {}
        self._ever: list[QuotaSet | Cordoned] = []

    def say(self, said: Said) -> None:
        """From now on, this is in the file, or not in it any more."""
        self._meant[said.address.subject] = said
        self._ever += [word for word in (_word(said),) if word is not None]
        self._host.edited("".join(_lines(each) for each in self._meant.values()))

    def landed(self, write: Write, _sequence: int) -> None:
        """A value is the last one of its subject now."""
        word = write.message
        if isinstance(word, (QuotaSet, Cordoned)) and word.source == SOURCE and word not in self._ever:
            self._books.fail("limits", f"{word} is said, and no file has said so")

    def missing(self) -> list[str]:
        """What the bus does not say as the file says it."""
        broker, found = self._host.broker, []
        for subject, said in self._meant.items():
            entry = broker.values.last(subject, broker.clockwork.now)
            last = entry.message if entry is not None else None
            standing = last if isinstance(last, (QuotaSet, Cordoned)) else None
            if standing != _word(said):
                found.append(f"{subject} is {standing}, and the file says {_word(said)}")
        return found


def _word(said: Said) -> QuotaSet | Cordoned | None:
    """What a file with this in it says; None when it is not in it."""
    message = said.message
    return structs.replace(message, source=SOURCE) if isinstance(message, (QuotaSet, Cordoned)) else None


def _lines(said: Said) -> str:
    word = _word(said)
    if isinstance(word, QuotaSet):
        keys = [
            f'{prefix}{name} = "{amount}"\n'
            for prefix, amounts in (("", word.total), ("pod-", word.request), ("guaranteed-", word.guaranteed))
            for name, amount in zip(("gpus", "memory", "compute-slices"), structs.astuple(amounts), strict=True)
            if amount is not None
        ]
        return f"[namespaces.{word.namespace}]\n" + "".join(keys)
    if isinstance(word, Cordoned):
        gpus = f"gpus = {list(word.gpus)}\n" if word.gpus else ""
        return f'[nodes."{word.node}"]\ncordon = true\ndrain = {str(word.drain).lower()}\nwhy = "{word.why}"\n{gpus}'
    return ""
