"""The operator: publishes messages by hand until they have landed, and again to a broker that has lost them."""

from typing import Protocol

from factories.words import write_of
from simulation.world.broker import Answer, Broker

from sluice.contracts.bus.events import Stream, Write, WriteAccepted
from sluice.contracts.bus.subjects import Address
from sluice.contracts.messages import AnyMessage

RETRY_S = 0.5


class Said(Protocol):
    """A message, and when it is published; at 0.0 it was there before anything began."""

    @property
    def at(self) -> float:
        """Virtual seconds since the beginning."""

    @property
    def address(self) -> Address: ...

    @property
    def message(self) -> AnyMessage: ...


class Operator:
    """Publishes messages until they have landed, and again to a broker that has lost all."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._meant: dict[str, Said] = {}
        self._number = 0
        broker.on_wiped.append(self._say_all)

    def say(self, said: Said) -> None:
        self._meant[said.address.subject] = said
        if said.at == 0.0:
            self._broker.put("operator", self._write(said))
        else:
            self._try(said)

    def _say_all(self) -> None:
        for said in self._meant.values():
            self._try(said)

    def _try(self, said: Said) -> None:
        broker = self._broker

        def again() -> None:
            if self._meant[said.address.subject] is said:
                self._try(said)

        def answered(answer: Answer) -> None:
            if not isinstance(answer, WriteAccepted):
                again()

        if not broker.up or broker.values.incarnation(Stream.BOOK) is None:
            broker.clockwork.after(RETRY_S, again)
            return
        broker.write("operator", self._write(said), answered)

    def _write(self, said: Said) -> Write:
        last = self._broker.values.last(said.address.subject, self._broker.clockwork.now)
        self._number += 1
        return write_of(said.address, said.message, last, f"operator-{self._number}")
