"""The folder of manifests, and the containers that run on what their pods were given."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from simulation.judges.sizes import limit_mib
from simulation.plans.pods import Pod
from simulation.world.device_steps import home_of
from simulation.world.hardware import Machine, Process
from simulation.world.trace import Trace
from simulation.world.virtual_clock import VirtualClock

from sluice.contracts.bus.events import Observed, Write
from sluice.contracts.messages import AllocationRequested, Bound, ContainerDevices, RequestWithdrawn
from sluice_node_agent.core.instructions import AnswerCall

RESTART_S = 0.5
ANSWER_LOST, LATE, REPEATED, UNPREPARE_LOST = 0.05, 0.15, 0.2, 0.15
"""How often a kubelet loses an answer, calls late, prepares again, and never unprepares."""
LATE_S, REPEATED_AFTER_S = 6.0, 8.0


class Caller(Protocol):
    """Calls a node's agent about a claim."""

    def __call__(self, claim: str, hear: Callable[[AnswerCall | None], None], *, prepare: bool) -> None:
        """`hear` gets the answer, or None where the connection is gone."""


@dataclass(slots=True)
class Folder:
    """Files by name. `pods` are what is written in them now, `broken` the files that are being written just now."""

    files: dict[str, str] = field(default_factory=dict)
    pods: dict[str, Pod] = field(default_factory=dict)
    written: dict[str, dict[Pod, None]] = field(default_factory=dict)
    """Every text that each pod ever had, the latest last."""
    since: dict[str, float] = field(default_factory=dict)
    """When each pod was last changed by a person."""
    puts: Counter[str] = field(default_factory=Counter)
    """How often each was written."""
    broken: dict[str, None] = field(default_factory=dict)
    on_change: list[Callable[[], None]] = field(default_factory=list)

    def wants(self, _request: str, name: str) -> bool:
        """Whether a request may stand for a pod that is wanted now: the folder knows names, not lives."""
        return name in self.pods

    def is_from(self, pod: Pod, origin: str) -> bool:
        """Whether a request says that it comes from this pod."""
        return pod.file in origin

    def is_untouched(self, name: str) -> bool:
        """Whether every request for a pod is for what is wanted now: there was never anything else of that name."""
        return self.puts[name] == 1

    def put(self, pod: Pod, now: float) -> None:
        """A person writes or edits a file."""
        self.pods[pod.name], self.since[pod.name] = pod, now
        self.puts[pod.name] += 1
        self.files[pod.file] = pod.text()
        texts = self.written.setdefault(pod.name, {})
        texts.pop(pod, None)
        texts[pod] = None
        self._changed()

    def spoil(self, pod: Pod) -> None:
        """The file is half written."""
        if pod.file in self.files:
            self.files[pod.file] = pod.text()[:60] + "\n  annotations: {"
            self.broken[pod.file] = None
            self._changed()

    def mend(self) -> None:
        """All files are written whole."""
        for pod in self.pods.values():
            if pod.file in self.broken:
                self.files[pod.file] = pod.text()
                self._changed()
        self.broken.clear()

    def remove(self, name: str) -> None:
        """A person removes a pod's file."""
        pod = self.pods.pop(name, None)
        if pod is not None:
            self.files.pop(pod.file, None)
            self.broken.pop(pod.file, None)
            self._changed()

    def _changed(self) -> None:
        for hear in self.on_change:
            hear()


class Kubelets:
    """
    Starts a container when its pod is bound and its source remembers that, its ticket is there and its devices exist;
    starts it again after a reboot, and when it ended with the MPS daemon that it was a client of.

    Its processes end some time after the pod's file is removed or its request is withdrawn, never at once.
    """

    def __init__(self, clockwork: VirtualClock, folder: Folder, machines: dict[str, Machine], trace: Trace) -> None:
        """Nothing runs yet."""
        self.clockwork = clockwork
        self.folder = folder
        self.machines = machines
        self.trace = trace
        self.dice = Random(0)
        self.on_started: list[Callable[[Machine, Process], None]] = []
        self.pods: dict[str, Pod] = {}
        """The pod of each request, as it was when it was asked for."""
        self.owners: dict[str, str] = {}
        self.bound: dict[str, Bound] = {}
        """What each pod may use, as its starter knows."""
        self.read: dict[str, Bound] = {}
        """What the pod-watcher has read of each, ..."""
        self.held: dict[str, str] = {}
        """... and what the bus says that it remembers."""
        self.claims: dict[str, str] = {}
        """The UID of the ResourceClaim of each pod that has one."""
        self.plugin = KubeletPlugin(clockwork, machines, trace)
        self.ended: dict[str, None] = {}

    def hear(self, write: Write, _sequence: int) -> None:
        """Something landed on the bus."""
        message = write.message
        request = write.subject.rpartition(".")[2]
        match message:
            case AllocationRequested():
                pod = self.folder.pods.get(message.name)
                if request not in self.pods and pod is not None:
                    self.pods[request] = pod
                self.owners[request] = message.owner
                if message.resource_claims:
                    self.claims[request] = message.resource_claims[0].uid
                if message.held is not None:
                    self.held[request] = message.held.allocation
                    self._give(request)
            case RequestWithdrawn():
                self.end(request)
            case _:
                pass

    def told(self, event: object) -> None:
        """The pod-watcher has read that a pod is bound."""
        if isinstance(event, Observed) and isinstance(event.entry.message, Bound):
            bound = event.entry.message
            self.read[bound.request] = bound
            self._give(bound.request)

    def removed(self, name: str) -> None:
        """A pod's object is gone: no container of it starts any more."""
        for request, pod in list(self.pods.items()):
            if pod.name == name:
                self.end(request)

    def rebooted(self, machine: Machine) -> None:
        """All containers of a node are started again, when they can be."""
        for request, bound in list(self.bound.items()):
            if bound.node == machine.node and request not in self.ended:
                self.clockwork.after(1 + self.dice.random(), lambda request=request: self._try(request))  # type: ignore[misc]

    def crashed(self, owners: list[str]) -> None:
        """Processes of these pods ended by themselves: their containers are started again."""
        for request, owner in self.owners.items():
            if owner in owners and request in self.bound and request not in self.ended:
                self.clockwork.after(RESTART_S, lambda request=request: self._try(request))  # type: ignore[misc]

    def restart(self, request: str, after_s: float) -> None:
        """A person restarts the containers of a pod."""

        def again() -> None:
            if request not in self.ended and request in self.owners:
                for machine in self.machines.values():
                    machine.end_processes(self.owners[request])
                self.clockwork.after(RESTART_S, lambda: self._try(request))

        self.clockwork.after(after_s, again)

    def end(self, request: str) -> None:
        """The pod is over; its processes end when they end."""
        if request in self.ended:
            return
        self.ended[request] = None
        pod, owner = self.pods.get(request), self.owners.get(request)
        if pod is None or owner is None:
            return

        def stop() -> None:
            for machine in self.machines.values():
                machine.end_processes(owner)
            if request in self.claims:
                self.plugin.unprepare(self.claims[request])

        self.clockwork.after(pod.lingers_s, stop)

    def runs(self, request: str) -> bool:
        """Whether processes of this request's pod are on the devices that it is bound to."""
        bound = self.bound.get(request)
        return bound is not None and not self._missing(request, bound)

    def _give(self, request: str) -> None:
        """
        A pod may run on what it is bound to, and a kubelet knows of it from now on.

        That is when its request says that its source remembers it (docs/protocol.md, section 7).
        """
        bound, before = self.read.get(request), self.bound.get(request)
        if bound is not None and bound.allocation == self.held.get(request) and bound != before:
            self.bound[request] = bound
            self.clockwork.after(0.05 + self.dice.random(), lambda: self._try(request))

    def _missing(self, request: str, bound: Bound) -> list[ContainerDevices]:
        """The containers that do not run. One that shares devices uses the first: it can talk to one daemon only."""
        owner = self.owners.get(request)
        running = {process.device for process in self.machines[bound.node].of_pod(owner or "")}
        return [one for one in bound.containers if not running.issuperset(_used(one))]

    def _try(self, request: str) -> None:
        pod, bound = self.pods.get(request), self.bound.get(request)
        if pod is None or bound is None or not pod.runs or request in self.ended:
            return
        missing = self._missing(request, bound)
        if not missing:
            return
        machine = self.machines[bound.node]
        if request in self.claims:
            found = self._handed_over(machine, request, missing)
            if found is None:
                return
            missing = found
            ready = bool(missing)
        else:
            ready = bound.ticket in machine.tickets
        devices = [uuid for one in missing for uuid in one.visible_devices.split(",") if uuid]
        ready = ready and all(machine.gpu_with(uuid) is not None for uuid in devices)
        if ready:
            self.trace.tell("kubelet", "containers start", request, f"{bound.node} {devices}")
            for one in missing:
                self._start(machine, request, one, pod)
        if not ready or self._missing(request, bound):
            self.clockwork.after(RESTART_S, lambda: self._try(request))

    def _handed_over(
        self, machine: Machine, request: str, missing: list[ContainerDevices]
    ) -> list[ContainerDevices] | None:
        """
        What the runtime reads in the CDI file of the pod's claim for containers to start; none where it lacks a device.

        None while the claim is not prepared: it is tried again when it is.
        """
        claim = self.claims[request]
        names = self.plugin.prepared(machine, claim)
        if names is None:
            self.plugin.prepare(machine, claim, lambda: self._try(request), lambda: request not in self.ended)
            return None
        there = {device.name: device for device in machine.cdi.get(claim, ())}
        if any(name not in there for name in names):
            return []
        wanted = [one.container for one in missing]
        return [device.container for device in there.values() if device.container.container in wanted]

    def _start(self, machine: Machine, request: str, container: ContainerDevices, pod: Pod) -> None:
        """
        Start what a container runs, on each device that it uses, if that can be had now.

        A client that finds no directory of a daemon runs without MPS and says nothing of it. Where the directory is
        there and the daemon does not serve it (dead, after a fault, busy with another user), it ends and is started
        again.
        """
        owner, home = self.owners[request], home_of(container.mps_pipe_directory)
        if container.mps_pipe_directory and home in machine.mps.directories:
            daemon = machine.mps.alive(home)
            if daemon is None or daemon.fault or daemon.directory.uid != pod.uid:
                return
        else:
            home = ""
        told = limit_mib(container.pinned_memory_limit)
        daemon = machine.mps.alive(home)
        limit = min(told, daemon.memory_mib) if daemon is not None else told
        for uuid in _used(container):
            if pod.opens_after_s:
                self._start_waiting(machine, request, machine.start_waiting(owner, uuid, home, limit))
            else:
                self._tell_started(machine, machine.start_process(owner, uuid, home, limit))

    def _start_waiting(self, machine: Machine, request: str, process: Process | None) -> None:
        """It computes something else first. One that does not find its device then ends, and is started again."""

        def open_late() -> None:
            if process is None or process not in machine.waiting:
                return
            opened = machine.open_late(process)
            self._tell_started(machine, opened)
            if opened is None:
                self.clockwork.after(RESTART_S, lambda: self._try(request))

        self.clockwork.after(self.pods[request].opens_after_s, open_late)

    def _tell_started(self, machine: Machine, process: Process | None) -> None:
        for hear in self.on_started if process is not None else ():
            hear(machine, process)


class KubeletPlugin:
    """
    How the kubelets call the plugin of their nodes' agents: Prepare before a pod's containers start, and Unprepare when
    they have ended.

    A call comes late, is repeated (as by a kubelet that was restarted), or its answer is lost, and Unprepare may be
    lost for good. One claim has one call at a time (kubernetes, pkg/kubelet/cm/dra/manager.go). After a reboot nothing
    counts as prepared.
    """

    def __init__(self, clockwork: VirtualClock, machines: dict[str, Machine], trace: Trace) -> None:
        """No claim is known."""
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

    def unprepare(self, claim: str) -> None:
        """The containers of the pod have ended."""
        self._over[claim] = None
        if claim not in self._busy:
            self._end(claim)

    def _end(self, claim: str) -> None:
        machine = self._known.pop(claim, None)
        if machine is None:
            return  # never prepared: the kubelet knows nothing of it
        self._prepared.pop(claim, None)
        if self.dice.random() < UNPREPARE_LOST:
            self.trace.tell("kubelet", "unprepare is lost", claim, machine.node)
            return

        def answered(answer: AnswerCall | None) -> None:
            if answer is None or answer.error or self.dice.random() < ANSWER_LOST:
                self.clockwork.after(RESTART_S * (1 + self.dice.random()), call)

        def call() -> None:
            self._call(machine, claim, answered, prepare=False)

        call()

    def _call(
        self, machine: Machine, claim: str, answered: Callable[[AnswerCall | None], None], *, prepare: bool
    ) -> None:
        late = LATE_S * self.dice.random() if self.dice.random() < LATE else 0.05 * self.dice.random()
        self.clockwork.after(late, lambda: self.callers[machine.node](claim, answered, prepare=prepare))


def _used(container: ContainerDevices) -> list[str]:
    devices = [uuid for uuid in container.visible_devices.split(",") if uuid]
    return devices[:1] if container.mps_pipe_directory else devices
