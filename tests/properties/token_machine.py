"""
Any order of events around the token scheduler of a home: sizes, processes, asks, lies, deaths and the clock.

Unlike the seeded processes of `simulation/world/token_world.py`, what happens here has no plan: hypothesis
chooses each event, and makes a failing order as short as it can. `judges/tokens.py` judges every step.
"""

from factories.gpus.token_scheduler import HELLO, JudgedScheduler
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from sluice_node_agent.core.quota import wire
from sluice_node_agent.core.quota.events import (
    ConnectionClosed,
    ConnectionOpened,
    Disconnect,
    MessageReceived,
    QuotaConfig,
    QuotaEvent,
    Send,
    TenantRemoved,
    TenantSet,
    TimerDue,
)
from sluice_node_agent.core.quota.scheduler import TokenScheduler

NAMES = st.sampled_from(["a", "b", "c", "d"])
PERCENTS = st.sampled_from([0, 1, 5, 20, 50, 90, 100])
WIDTHS = st.sampled_from([1, 20, 50, 60, 100])
PAUSES_US = st.sampled_from([1, 300, 1_000, 4_000, 9_999, 10_000, 30_000, 99_000, 250_000])


class TokenMachine(RuleBasedStateMachine):
    """One home."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.last = 0
        self.home = JudgedScheduler(TokenScheduler(QuotaConfig(), 1, 0))
        self.connections: list[int] = []
        self.tokens: dict[int, int] = {}
        """What each process was given last."""

    def tell(self, event: QuotaEvent) -> None:
        """An event, and what comes of it."""
        for each in self.home.tell(event, self.now):
            match each:
                case Send(connection=connection, message=wire.Grant(token=token)):
                    self.tokens[connection] = token
                case Disconnect(connection=connection) if connection in self.connections:
                    self.connections.remove(connection)

    def some(self, data: st.DataObject) -> int:
        """Any process."""
        return data.draw(st.sampled_from(self.connections))

    @initialize(request=PERCENTS, width=WIDTHS)
    def begin(self, request: int, width: int) -> None:
        """A home has a tenant with a process."""
        self.tell(TenantSet("a", request * 10_000, WHOLE, width))
        self.arrives("a")

    @rule(name=NAMES, request=PERCENTS, limit=PERCENTS, width=WIDTHS)
    def sizes(self, name: str, request: int, limit: int, width: int) -> None:
        """A share comes, or is adjusted."""
        self.tell(TenantSet(name, request * 10_000, limit * 10_000, width))

    @rule(name=NAMES)
    def goes(self, name: str) -> None:
        """A share is taken back."""
        self.tell(TenantRemoved(name))

    @rule(name=NAMES)
    def arrives(self, name: str) -> None:
        """A process connects, and says hello."""
        self.last += 1
        self.connections.append(self.last)
        self.tell(ConnectionOpened(self.last, name))
        if self.last in self.connections:
            self.tell(MessageReceived(self.last, HELLO))

    @precondition(lambda self: self.connections)
    @rule(data=st.data())
    def dies(self, data: st.DataObject) -> None:
        """A process ends, whatever it holds."""
        connection = self.some(data)
        self.connections.remove(connection)
        self.tell(ConnectionClosed(connection))

    @precondition(lambda self: self.connections)
    @rule(data=st.data(), ahead=st.booleans(), wanted=st.sampled_from([0, 1, 3_000, 10**12]))
    def asks(self, data: st.DataObject, ahead: bool, wanted: int) -> None:
        """A process wants a token."""
        connection = self.some(data)
        self.last += 1
        ahead_of = self.tokens.get(connection, 0) if ahead else 0
        self.tell(MessageReceived(connection, wire.Ask(self.last, wanted, ahead_of)))

    @precondition(lambda self: self.tokens and self.connections)
    @rule(data=st.data())
    def gives_back(self, data: st.DataObject) -> None:
        """A process gives back what it was given last; some lie about what they hold."""
        connection = self.some(data)
        token = self.tokens.get(connection) or data.draw(st.sampled_from(sorted(self.tokens.values())))
        self.tell(MessageReceived(connection, wire.GiveBack(token, data.draw(st.sampled_from([0, 10**15])))))

    @rule(pause=PAUSES_US)
    def time_passes(self, pause: int) -> None:
        """The clock goes on, and wakes the scheduler when it wanted."""
        until = self.now + pause
        for _ in range(1_000):
            due = self.home.wakes_at
            if due is None or due > until:
                break
            self.now, self.home.wakes_at = max(self.now, due), None
            self.tell(TimerDue())
        else:
            raise AssertionError("it wakes without end")
        self.now = until


WHOLE = 1_000_000
