"""A small world for one named schedule: calm weather, few nodes, the test's hand on everything, the judge watching."""

from collections.abc import Callable, Sequence
from typing import Any

from simulation.judges.gpu_tables import A30, A100, A100_WITHOUT_MIG, GpuRow
from simulation.judges.sizes import Resizing
from simulation.plans.plan import Fault, FaultKind, Plan
from simulation.plans.pods import Ask, Device, Pod
from simulation.world.host import Host
from simulation.world.weather import Fate, Weather
from simulation.world.world import World

from sluice.contracts.bus.events import Entry, Observed, Stream, Write
from sluice.contracts.ids import OperationId
from sluice.contracts.messages import AnyMessage, Bound

MIG_NODE: tuple[tuple[GpuRow, bool], ...] = ((A100, True),)
A30_NODE: tuple[tuple[GpuRow, bool], ...] = ((A30, True),)
WHOLE_NODE: tuple[tuple[GpuRow, bool], ...] = ((A100_WITHOUT_MIG, False),)
WHOLE = Ask((("sluice.dev/gpus", "1"),), ("main",), (Device("whole"),))


def sliced(profile: str) -> Ask:
    return Ask((("sluice.dev/profile", profile),), ("main",), (Device("profile", profile=profile),))


class Scene:
    """Runs a world step by step. Every step raises ViolationError when an invariant breaks."""

    def __init__(
        self,
        *nodes: tuple[tuple[GpuRow, bool], ...],
        allocators: int = 1,
        weather: Weather | None = None,
        folder_evicts: bool = False,
        timed: bool = False,
        hands_over: bool = False,
        late: tuple[str, ...] = (),
        **more: Any,
    ) -> None:
        """Nodes are named node-0, node-1, ... in the order given; everything has started and nothing is asked for.

        With `folder_evicts` the pod-watcher carries out evictions itself; without, the evictor does. Where it is
        `timed`, all nodes enforce time. Where it `hands_over`, all kubelets hand devices over by claim. Nodes in `late`
        are not there before they `join`. `more` are fields of the plan.
        """
        named = tuple((f"node-{number}", gpus) for number, gpus in enumerate(nodes or (MIG_NODE,)))
        names = tuple(node for node, _ in named)
        more.setdefault("closing_ttl_s", 4 * 3600)
        plan = Plan(
            seed=1,
            nodes=named,
            allocators=allocators,
            both_active=allocators > 1,
            weather=weather or Weather(until=0.0),
            timed=names if timed else (),
            hands_over=names if hands_over else (),
            **more,
        )
        self.world = World(plan, "lines")
        self.world.watcher.evicts = folder_evicts or plan.cluster
        self.world.start(later=tuple(f"agent-{node}" for node in late))
        self.wait(3.0)

    def join(self, node: str) -> None:
        """A node is there that was not before: its agent starts."""
        self.host(f"agent-{node}").start()

    def wait(self, seconds: float) -> None:
        self.world.clockwork.run_until(self.world.clockwork.now + seconds)

    def until(self, what: Callable[[], bool], longest_s: float = 30.0) -> None:
        """Let time pass until something is so."""
        end = self.world.clockwork.now + longest_s
        while not what():
            assert self.world.clockwork.now < end, "\n".join(self.world.trace.lines[-80:])
            self.wait(0.01)

    def pod(self, name: str, ask: Ask, *, runs: bool = True, lingers_s: float = 0.0, **more: Any) -> None:
        """A pod comes; `more` are fields of it."""
        self.world.folder.put(Pod(name, ask, runs, lingers_s, **more), self.world.clockwork.now)

    def serve(self, name: str, ask: Ask, *, longest_s: float = 30.0, **pod: Any) -> Bound:
        """A pod comes, and runs soon; what it is bound to then."""
        self.pod(name, ask, **pod)
        self.until(lambda: self.runs(name), longest_s)
        bound = self.bound(name)
        assert bound is not None
        return bound

    def serve_all(self, names: Sequence[str], ask: Ask, *, longest_s: float = 30.0, **pod: Any) -> None:
        """Pods come that ask for the same, and all of them run soon."""
        for name in names:
            self.pod(name, ask, **pod)
        self.until(lambda: all(self.runs(name) for name in names), longest_s)

    def remove(self, name: str) -> None:
        self.world.remove(name)

    def wipe(self) -> None:
        """The bus has nothing any more, in this instant, and its streams are there again."""
        self.world.broker.wipe()
        self.world.broker.ensure()

    def strike(self, kind: FaultKind, target: str = "", lasts_s: float = 1.0, number: int = 0) -> None:
        self.world.faults.strike(Fault(self.world.clockwork.now, kind, target, lasts_s, number))

    def resize(self, name: str, memory_mib: int, sm_partition: int | None = None, *, restart_s: float = -1.0) -> None:
        """An operator resizes the shares of a pod; the pod is restarted so long after that, or not at all."""
        restart = restart_s if restart_s >= 0 else None
        resizing = Resizing(self.world.clockwork.now, name, memory_mib, sm_partition, restart)
        self.world.resizer.resize(resizing, self.world.judge.requests)

    def host(self, name: str) -> Host:
        return self.world.hosts[name]

    def kill_after(self, name: str, events: int, *, comes_back_s: float = 1.5) -> None:
        """A process dies in the middle of the n-th event from now on, and is started again so long after that."""
        host = self.host(name)
        at = host.handled + events

        def kill(_event: object) -> None:
            if host.handled == at:
                host.crash()
                self.world.clockwork.after(comes_back_s, lambda: host.alive or host.start())

        host.on_event.append(kill)

    def request(self, name: str) -> str:
        """The latest request id of a pod."""
        return [request for request, asked in self.world.judge.requests.items() if asked.name == name][-1]

    def value(self, subject: str) -> AnyMessage | None:
        """What the bus says at a subject now."""
        entry = self.world.broker.values.last(subject, self.world.clockwork.now)
        return entry.message if entry is not None else None

    def subjects(self) -> list[str]:
        """Every subject that has a value now."""
        values, now = self.world.broker.values, self.world.clockwork.now
        return [entry.subject for stream in (Stream.BOOK, Stream.STATE) for entry in values.snapshot(stream, (), now)]

    def bound(self, name: str) -> Bound | None:
        """The binding of a pod, if it is bound now."""
        if not any(asked.name == name for asked in self.world.judge.requests.values()):
            return None
        message = self.value(f"sluice.binding.{self.request(name)}")
        return message if isinstance(message, Bound) else None

    def runs(self, name: str) -> bool:
        """Whether the pod's processes are on their devices."""
        return self.bound(name) is not None and self.world.kubelets.runs(self.request(name))

    def landed(self) -> list[Write]:
        """From now on, every write that lands is appended to this list."""
        writes: list[Write] = []
        self.world.broker.on_landed.append(lambda write, _sequence: writes.append(write))
        return writes

    def until_lands(self, kind: type[AnyMessage], longest_s: float = 30.0) -> Any:
        """Let time pass until a message of this kind lands: that one."""
        landed = self.landed()
        self.until(lambda: any(isinstance(write.message, kind) for write in landed), longest_s)
        return next(write.message for write in landed if isinstance(write.message, kind))

    def lose(self, what: Callable[[str, Write], bool], times: int | None = None) -> list[Write]:
        """From now on, such writes (of which host, and what) do not arrive; they are appended to this list."""
        lost: list[Write] = []

        def fate_of(host: str, write: Write) -> Fate | None:
            if (times is not None and len(lost) >= times) or not what(host, write):
                return None
            lost.append(write)
            return "request lost"

        self.world.broker.fate_of = fate_of
        return lost

    def land(self, write: Write) -> None:
        """A write that was on its way all the time arrives now; its answer is not awaited any more."""
        self.world.broker.fate_of = lambda _host, _write: None
        self.world.broker.write("the network", write, lambda _answer: None)

    def stall(self, host: str, stream: Stream) -> Callable[[], None]:
        """A process receives nothing more of one stream, until the result is called; of the other it does."""
        (reader,) = (reader for reader in self.host(host).readers if reader.stream is stream)
        return reader.stand_still()

    def let_hear(self, host: str, subject: str) -> None:
        """A process that receives nothing of STATE gets the last value of this one subject."""
        broker = self.world.broker
        last = broker.values.last(subject, broker.clockwork.now)
        assert last is not None, subject
        entry = Entry(subject, last.sequence, last.operation, last.message)
        self.host(host).offer(Observed(Stream.STATE, entry))

    def tell(self, host: str, subject: str, message: AnyMessage, sequence: int) -> None:
        """A process receives an entry of BOOK (again)."""
        self.host(host).offer(Observed(Stream.BOOK, Entry(subject, sequence, OperationId("late-1"), message)))

    def finish(self, once: Callable[[], bool] = lambda: True, longest_s: float = 30.0) -> None:
        """Once something is so, every request is answered; then all pods are removed and nothing is left."""
        self.until(once, longest_s)
        self.world.faults.heal()
        self.world.finish()
