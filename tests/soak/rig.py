"""One node under soak: machine, agent run after run, driver's loop; the judge looks after each wanted kill."""

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, NoReturn, Self

from soak import judge
from soak.broker import Broker, Held
from soak.life import QUICK, Place, Strike, run_life
from soak.machine import NODE, Machine
from soak.mps import kill_daemons, make_mps
from soak.outcome import Counts, SoakFailureError
from soak.wire import Channel, ChannelClosedError

from sluice.contracts.bus.events import Write
from sluice.contracts.ids import NodeName
from sluice.contracts.messages import DeviceGrant, SliceGone, SliceReady
from sluice.runtime.bus import Reading
from sluice_node_agent.core.config import AgentConfig

PATIENCE_S = 120.0
"""How long anything may take on a busy machine; what takes milliseconds when all is well."""
TURN_S = 0.02
ASK_AGAIN_S = 0.5
STACKS_S = 2.0
LOG_LINES = 15
LOG_MAX_BYTES = 16 << 20


@dataclass(slots=True)
class Rig:
    """One node. Use as a context: at its end no process and no directory of it is left."""

    root: Path
    machine: Machine
    place: Place
    dice: Random
    counts: Counts
    config: AgentConfig = QUICK
    rest_s: float = 20.0
    """How long the node may differ from the ledger before it is a leak; a busy machine needs some of it."""
    broker: Broker = field(init=False)
    gpus: list[str] = field(init=False)
    foreign: set[judge.Key] = field(default_factory=set)
    met: list[str] = field(default_factory=list)
    """Names of the records that were appended since `arm`."""
    struck: tuple[str, ...] = ()
    """Names of the records at which the strike fell."""
    on_pause: Callable[[], None] | None = None
    """What to do where the agent waits in its journal."""
    each_turn: Callable[[], None] | None = None
    """What to do with each turn of the loop."""
    may_fail: bool = False
    """Something is done to the machine by which a slice cannot be made."""
    story: list[str] = field(default_factory=list)
    snapshot: Any = None
    _pid: int = 0
    _channel: Channel | None = None
    _armed: bool = False
    _wanted_dead: bool = False
    _then: Callable[[], None] | None = None
    _after_life: Callable[[], None] | None = None
    _started: bool = False

    def __post_init__(self) -> None:
        self.broker = Broker(NodeName(NODE), self.dice)
        self.gpus = [gpu.uuid for gpu in self.machine.look()]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.end_agent()
        kill_daemons(self.place.mps)

    # -- the agent's process ------------------------------------------------------------------------------------------

    def start(self, strike: Strike | None = None) -> None:
        """Fork a new run, which may have a strike waiting from its first append, and wait until it has begun."""
        self.counts.lives += 1
        self._trim_log()
        ours, theirs = Channel.pair()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            self._live(ours, theirs, strike)
        theirs.close()
        self._pid, self._channel, self._started, self._wanted_dead = pid, ours, False, False
        self.note(f"life {self.counts.lives}: pid {pid}")
        self.until(lambda: self._started, "the agent starts")

    def _live(self, ours: Channel, theirs: Channel, strike: Strike | None) -> NoReturn:
        ours.close()
        if self._channel is not None:
            self._channel.close()
        run_life(self.place, theirs, f"soak-{self.counts.lives}", self.config, self._make, strike)

    def _make(self) -> tuple[Any, Any]:
        return self.machine.backend(), make_mps(self.place, self.root, self.machine.environment())

    def end_agent(self, *, orderly: bool = False) -> None:
        """The process ends, and nothing takes its place."""
        if self._channel is None:
            return
        self._wanted_dead = True
        with contextlib.suppress(ChannelClosedError):
            if orderly:
                self._channel.send("stop")
                self._await_end()
            else:
                os.kill(self._pid, signal.SIGKILL)
        self._reap()

    def kill(self) -> None:
        """SIGKILL it, wherever it is; a new run begins."""
        if self._channel is None:
            return
        self._wanted_dead = True
        os.kill(self._pid, signal.SIGKILL)
        self._ended()

    def restart(self, *, orderly: bool) -> None:
        """End it, in order or not, and begin a new run."""
        self.end_agent(orderly=orderly)
        self.start()

    def reboot(self) -> None:
        """The node goes down with everything that runs on it, and comes up."""
        self.end_agent()
        kill_daemons(self.place.mps)
        self.machine.reboot()
        self.foreign.clear()
        self.counts.reboots += 1
        self.note("reboot")
        self.start()

    def arm(self, strike: Strike | None, then: Callable[[], None] | None = None) -> None:
        """Count appends from now on, and strike; `then` runs after the death. One meanwhile counts as well."""
        self._armed, self._then = False, then
        while not self._armed:
            life = self.counts.lives
            self._send("arm", strike)
            self.until(lambda life=life: self._armed or self.counts.lives != life, "the agent to receive it")

    @property
    def has_struck(self) -> bool:
        return bool(self.struck)

    # -- orders -------------------------------------------------------------------------------------------------------

    def grant(self, *devices: DeviceGrant, namespace: str = "team", after: tuple[str, ...] = ()) -> Held:
        owner = f"pod-{self.dice.randrange(1 << 30)}"
        held, batch = self.broker.grant(devices, owner=owner, namespace=namespace, after=after)
        self.note(f"grant {held.allocation}: {[(d.gpu[-4:], d.profile, d.start, bool(d.share)) for d in devices]}")
        self._tell(batch)
        return held

    def revoke(self, held: Held) -> None:
        self.note(f"revoke {held.allocation}")
        self._tell(self.broker.revoke(held))

    def finish(self, held: Held) -> None:
        """It is gone: close its entry, observe the closing message, forget it. One cycle is done."""
        self._tell(self.broker.close(held))
        self.until(lambda: held.is_gone and held.word.closing, f"{held.allocation} gets its closing word")
        self.broker.forget(held)
        self.counts.cycles += 1

    def until_said(self, held: Held, *words: str) -> str:
        """Wait for one of these messages about the standing order; returns it."""
        wanted = f"{held.allocation} r{held.revision} is said to be {' or '.join(words)}, not {held.said}"
        self.until(lambda: held.said in words and held.word.revision >= held.revision, wanted)
        return held.said

    # -- the loop -----------------------------------------------------------------------------------------------------

    def until(self, true: Callable[[], bool], what: str, *, patience_s: float = PATIENCE_S) -> None:
        """Serve the agent until something is true. Raises SoakFailureError when it does not become so."""
        deadline = time.monotonic() + patience_s
        while not true():
            if time.monotonic() > deadline:
                self._dump_stacks()
                raise self.failure(f"waited {patience_s:g} s in vain until {what}")
            self.turn()

    def turn(self) -> None:
        if self._channel is None:
            time.sleep(TURN_S)
            return
        if self.each_turn is not None:
            self.each_turn()
        readable, _, _ = select.select([self._channel.socket], [], [], TURN_S)
        if not readable:
            return
        try:
            frames = self._channel.receive()
        except ChannelClosedError:
            self._ended()
            return
        for frame in frames:
            self._serve(frame)

    def _dump_stacks(self) -> None:
        if self._channel is None:
            return
        size = self.place.log.stat().st_size
        os.kill(self._pid, signal.SIGUSR1)
        deadline = time.monotonic() + STACKS_S
        while self.place.log.stat().st_size == size and time.monotonic() < deadline:
            time.sleep(TURN_S)

    def ask_snapshot(self) -> Any:
        """The node as the agent would report it to the inventory, once it can."""
        self.snapshot, asked_at = None, 0.0

        def told() -> bool:
            nonlocal asked_at
            if self.snapshot is None and time.monotonic() > asked_at + ASK_AGAIN_S:
                asked_at = time.monotonic()
                self._send("snapshot")
            return self.snapshot is not None

        self.until(told, "the agent gives its snapshot")
        return self.snapshot

    def _serve(self, frame: tuple[Any, ...]) -> None:
        match frame:
            case ("ask", question, "write", Write() as write):
                answer, heard = self.broker.write(write)
                self._heard(write.message)
                self._send("answer", question, answer)
                self._tell(heard)
            case ("ask", question, "last", subject):
                self._send("answer", question, self.broker.last(subject))
            case ("read",):
                self._tell(self.broker.reading())
            case ("append", names, strikes):
                self.met += names
                if strikes:
                    self.struck = tuple(names)
                    self._wanted_dead = True
            case ("paused",):
                self._wanted_dead = False
                assert self.on_pause is not None
                self.on_pause()
                self._send("go on")
            case ("started", _):
                self._started = True
            case ("armed",):
                self._armed, self._after_life, self.met, self.struck = True, self._then, [], ()
            case ("snapshot", snapshot):
                self.snapshot = snapshot

    def _heard(self, word: Any) -> None:
        """A message must be true when it is published."""
        held = self.broker.held.get(getattr(word, "allocation", None))  # type: ignore[arg-type]
        if held is None or held.word is not word:
            return
        self.note(f"heard {type(word).__name__} of {held.allocation} r{word.revision}")
        wrong: list[str] = []
        if isinstance(word, SliceGone) and not word.closing:
            others = [other for other in self.broker.held.values() if other is not held]
            wrong = judge.why_not_gone(held, others, self.place, self.machine, self.foreign)
        elif isinstance(word, SliceReady) and word.revision == held.revision and not held.revoked:
            wrong = judge.why_not_ready(word, self.place, self.machine)
        if wrong:
            raise self.failure(f"{type(word).__name__} of {held.allocation} is not true", wrong)

    def _tell(self, batch: list[Reading]) -> None:
        if batch:
            self._send("batch", batch)

    def _send(self, *frame: Any) -> None:
        if self._channel is not None:
            with contextlib.suppress(ChannelClosedError):  # it has died: the next turn sees it
                self._channel.send(*frame)

    # -- deaths -------------------------------------------------------------------------------------------------------

    def _ended(self) -> None:
        wanted, names = self._wanted_dead, self.struck
        status = self._reap()
        if not wanted or not os.WIFSIGNALED(status):
            raise self.failure(f"the agent ended by itself (status {status})")
        self.counts.kills += 1
        self.note(f"killed at {', '.join(names) or 'some point'}")
        wrong = judge.after_death(judge.look(self.place, self.machine), self.foreign)
        if wrong:
            raise self.failure(f"after a kill at {', '.join(names) or 'some point'}", wrong)
        then, self._after_life = self._after_life, None
        if then is not None:
            then()
        if self._channel is None:
            self.start()

    def _await_end(self) -> None:
        """Serve it until it has closed its end."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            readable, _, _ = select.select([self._channel.socket], [], [], TURN_S)
            for frame in self._channel.receive() if readable else []:
                self._serve(frame)
        raise self.failure("the agent does not stop")

    def _reap(self) -> int:
        self._drain()
        self._channel.close()
        self._channel = None
        deadline = time.monotonic() + PATIENCE_S
        while True:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                return status
            if time.monotonic() > deadline:
                os.kill(self._pid, signal.SIGKILL)
                raise self.failure(f"process {self._pid} does not end")
            time.sleep(0.001)

    def _drain(self) -> None:
        """What it had said before it died was said: the broker has it."""
        with contextlib.suppress(ChannelClosedError):
            while True:
                readable, _, _ = select.select([self._channel.socket], [], [], 0.5)
                if not readable:
                    return
                for frame in self._channel.receive():
                    if frame[0] != "paused":
                        self._serve(frame)

    # -- looking ------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Nothing is under way: wait until node and ledger are the same. Raises SoakFailureError when they stay not."""
        deadline = time.monotonic() + self.rest_s
        while True:
            wrong = judge.at_rest(judge.look(self.place, self.machine), self.broker.held.values(), self.foreign)
            if not wrong:
                self.counts.checks += 1
                return
            if time.monotonic() > deadline:
                raise self.failure("at rest", wrong)
            self.turn()

    def failure(self, what: str, leaks: Sequence[str] = ()) -> SoakFailureError:
        """An error that carries both sides: what the ledger says, and what is there."""
        ledger = [
            f"in the ledger: {h.allocation} r{h.revision}{' revoked' if h.revoked else ''}, {h.said or 'nothing said'},"
            f" {[judge.spot_of(d) for d in h.booking.devices]}"
            for h in self.broker.held.values()
        ]
        there = judge.look(self.place, self.machine).says()
        log = self.place.log.read_text(encoding="utf-8").splitlines()[-LOG_LINES:]
        return SoakFailureError(what, leaks, [*log, *self.story[-40:], *ledger, *there])

    def note(self, line: str) -> None:
        self.story.append(line)
        del self.story[:-200]

    def _trim_log(self) -> None:
        if self.place.log.exists() and self.place.log.stat().st_size > LOG_MAX_BYTES:
            self.place.log.replace(self.place.log.with_suffix(".old"))
