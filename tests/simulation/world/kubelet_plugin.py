"""How kubelets call the plugin of their nodes' agents about ResourceClaims: late, again, or never."""

from collections.abc import Callable
from random import Random
from typing import Protocol

from simulation.world.hardware import Machine
from simulation.world.trace import Trace
from simulation.world.virtual_clock import VirtualClock

from sluice_node_agent.core.instructions import AnswerCall

RESTART_S = 0.5
ANSWER_LOST, LATE, REPEATED, TWICE, UNPREPARE_LOST, TOO_EARLY = 0.05, 0.15, 0.2, 0.1, 0.15, 0.3
"""How often a kubelet loses an answer, calls late, prepares again, calls twice at a time, never unprepares, and does so
before the containers have ended."""
LATE_S, REPEATED_AFTER_S = 6.0, 8.0
SHARED = "-shared"
"""What the UID of a claim ends with that several pods use: its agent knows the one that asked."""


class Caller(Protocol):
    """Calls a node's agent about a claim."""

    def __call__(self, claim: str, hear: Callable[[AnswerCall | None], None], *, prepare: bool) -> None:
        """`hear` gets the answer, or None where the connection is gone."""


class KubeletPlugin:
    """
    How the kubelets call the plugin of their nodes' agents: Prepare before a pod's containers start, and Unprepare when
    they have ended.

    A call comes late, is repeated (as by a kubelet that was restarted), or its answer is lost, and Unprepare may be
    lost for good, or come before the end (a kubelet's reconcile loop, for a pod that was deleted by force). One claim
    has one call at a time (kubernetes, pkg/kubelet/cm/dra/manager.go), but for that of a kubelet that was restarted
    meanwhile. After a reboot nothing counts as prepared.
    """

    def __init__(self, clockwork: VirtualClock, machines: dict[str, Machine], trace: Trace) -> None:
        self.clockwork = clockwork
        self.machines = machines
        self.trace = trace
        self.dice = Random(0)
        self.callers: dict[str, Caller] = {}
        """How the agent of each node is called."""
        self._prepared: dict[str, tuple[str, int, tuple[str, ...]]] = {}
        """By claim: the node, its boot, and the names of its devices."""
        self._known: dict[str, Machine] = {}
        """Where a claim was prepared, or may have been."""
        self._busy: dict[str, None] = {}
        self._over: dict[str, None] = {}
        self._ending: dict[str, None] = {}
        """Claims whose Unprepare is not answered yet."""

    def prepared(self, machine: Machine, claim: str) -> tuple[str, ...] | None:
        """The devices of a claim that is prepared on a node in this boot; None when it is not."""
        node, boots, names = self._prepared.get(claim, ("", 0, ()))
        return names if (node, boots) == (machine.node, machine.boots) else None

    def prepare(self, machine: Machine, claim: str, then: Callable[[], None], is_wanted: Callable[[], bool]) -> None:
        """Prepare a claim, again and again; `then` when it is, unless it is over or wanted no more."""
        if claim in self._busy or claim in self._over:
            return
        self._busy[claim] = None
        self._known[claim] = machine
        boots = machine.boots

        def answered(answer: AnswerCall | None) -> None:
            self._busy.pop(claim, None)
            if claim in self._over:
                self._end(claim)
                return
            lost = self.dice.random() < ANSWER_LOST
            if answer is None or answer.error or lost or machine.boots != boots:
                self.clockwork.after(RESTART_S * (1 + self.dice.random()), again)
                return
            self.trace.tell("kubelet", "claim prepared", claim, machine.node)
            self._prepared[claim] = (machine.node, boots, tuple(device.name for device in answer.devices))
            if self.dice.random() < REPEATED:
                self.clockwork.after(REPEATED_AFTER_S * self.dice.random(), repeat)
            then()

        def again() -> None:
            if is_wanted():
                self.prepare(machine, claim, then, is_wanted)

        def repeat() -> None:
            if self.prepared(machine, claim) is not None and is_wanted():
                del self._prepared[claim]
                self.prepare(machine, claim, then, is_wanted)

        self._call(machine, claim, answered, prepare=True)

    def forget(self, claim: str) -> None:
        """The pod's object is gone, maybe by force: now and then its use is ended while its containers run."""
        if self.dice.random() < TOO_EARLY:
            self.unprepare(claim)

    def unprepare(self, claim: str) -> None:
        """The containers of the pod have ended."""
        self._over[claim] = None
        if claim not in self._busy:
            self._end(claim)

    def is_ending(self, claim: str) -> bool:
        """Whether a claim whose pod has ended is still to be unprepared: the pod's end is not reported before."""
        return claim in self._ending or (claim in self._over and claim in self._busy)

    def _end(self, claim: str) -> None:
        machine = self._known.pop(claim, None)
        if machine is None:
            return  # never prepared: the kubelet knows nothing of it
        self._prepared.pop(claim, None)
        if self.dice.random() < UNPREPARE_LOST:
            self.trace.tell("kubelet", "unprepare is lost", claim, machine.node)
            return

        self._ending[claim] = None

        def answered(answer: AnswerCall | None) -> None:
            if answer is not None and not answer.error:
                self._ending.pop(claim, None)
            if answer is None or answer.error or self.dice.random() < ANSWER_LOST:
                self.clockwork.after(RESTART_S * (1 + self.dice.random()), call)

        def call() -> None:
            self._call(machine, claim, answered, prepare=False)

        call()

    def _call(
        self, machine: Machine, claim: str, answered: Callable[[AnswerCall | None], None], *, prepare: bool
    ) -> None:
        if claim.endswith(SHARED):
            machine.shares.add(claim.removesuffix(SHARED))
        late = LATE_S * self.dice.random() if self.dice.random() < LATE else 0.05 * self.dice.random()
        if prepare and self.dice.random() < TWICE:
            self.clockwork.after(late, lambda: self._again(machine, claim))
        self.clockwork.after(late, lambda: self.callers[machine.node](claim, answered, prepare=prepare))

    def _again(self, machine: Machine, claim: str) -> None:
        if claim not in self._over:
            self.callers[machine.node](claim, lambda _: None, prepare=True)
