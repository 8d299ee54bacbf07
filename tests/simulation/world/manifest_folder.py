"""The folder of manifests, and the containers that run on what their pods were given."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from simulation.judges.sizes import limit_mib
from simulation.plans.pods import Pod
from simulation.world.device_steps import home_of
from simulation.world.hardware import Machine, Process
from simulation.world.kubelet_plugin import KubeletPlugin
from simulation.world.trace import Trace
from simulation.world.virtual_clock import VirtualClock

from sluice.contracts.bus.events import Observed, Write
from sluice.contracts.messages import AllocationRequested, Bound, ContainerDevices, RequestWithdrawn
from sluice.contracts.ticket_paths import ticket_of
from sluice_node_agent.core.instructions import CdiDevice

RESTART_S = 0.5
STARTS_S = 0.3
"""The runtime has read a CDI file so long before the container runs."""


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
        """Whether a request may stand for a pod that is wanted now: the folder knows names, not incarnations."""
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
        if pod.file in self.files:
            self.files[pod.file] = pod.text()[:60] + "\n  annotations: {"
            self.broken[pod.file] = None
            self._changed()

    def mend(self) -> None:
        for pod in self.pods.values():
            if pod.file in self.broken:
                self.files[pod.file] = pod.text()
                self._changed()
        self.broken.clear()

    def remove(self, name: str) -> None:
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
        self.clockwork = clockwork
        self.folder = folder
        self.machines = machines
        self.trace = trace
        self.dice = Random(0)
        self.on_started: list[Callable[[Machine, Process], None]] = []
        self.on_waiting: list[Callable[[Machine, Process], None]] = []
        """Called with each that began, and will open its device later."""
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
                    machine.end_processes(self.owners[request], sandboxes=False)
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

        if request in self.claims:
            self.plugin.forget(self.claims[request])
        self.clockwork.after(pod.lingers_s, stop)

    def owners_by_claim(self) -> set[str]:
        """The pods whose devices are handed over by claim."""
        return {self.owners[request] for request in self.claims}

    def runs(self, request: str) -> bool:
        """Whether processes of this request's pod are on the devices that it is bound to."""
        bound = self.bound.get(request)
        return bound is not None and not self._missing(request, bound)

    def _give(self, request: str) -> None:
        """A pod may run on its binding from now on: its request says that its source remembers it (PROTOCOL §7)."""
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
        if pod is None or bound is None or request in self.ended:
            return
        if not pod.runs:
            self._prepare(request, bound)
            return
        missing = self._missing(request, bound)
        if not missing:
            return
        machine = self.machines[bound.node]
        if request in self.claims:
            self._try_by_claim(machine, request, [one.container for one in missing])
            return
        devices = [uuid for one in missing for uuid in one.visible_devices.split(",") if uuid]
        ready = bound.ticket in machine.tickets and all(machine.gpu_with(uuid) is not None for uuid in devices)
        if ready:
            self.trace.tell("kubelet", "containers start", request, f"{bound.node} {devices}")
            for one in missing:
                self._start(machine, request, one, _used(one), ticket_of(bound.ticket, one))
        if not ready or self._missing(request, bound):
            self.clockwork.after(RESTART_S, lambda: self._try(request))

    def _prepare(self, request: str, bound: Bound) -> None:
        machine, claim = self.machines[bound.node], self.claims.get(request)
        if claim is not None and self.plugin.prepared(machine, claim) is None:
            self.plugin.prepare(machine, claim, lambda: None, lambda: request not in self.ended)

    def _try_by_claim(self, machine: Machine, request: str, wanted: list[str]) -> None:
        """
        Its claim is prepared, its sandbox made, and its containers with what the runtime reads in the claim's CDI file.

        Containers that end are started again in the sandbox, without another call. A claim that is not prepared is
        tried again when it is.
        """
        claim = self.claims[request]
        names = self.plugin.prepared(machine, claim)
        if names is None:
            self.plugin.prepare(machine, claim, lambda: self._try(request), lambda: request not in self.ended)
            return
        sandbox = machine.start_sandbox(self.owners[request])
        there = {device.name: device for device in machine.cdi.get(claim, ())}
        if all(name in there for name in names):
            read = [device for device in there.values() if device.container.container in wanted]
            takes_s = STARTS_S * self.dice.random() if sandbox is not None else 0.0
            boots = machine.boots

            def start() -> None:
                if machine.boots == boots and (sandbox is None or sandbox in machine.waiting):
                    self._start_by_claim(machine, request, read)

            self.clockwork.after(takes_s, start)
        self.clockwork.after(RESTART_S, lambda: self._try(request))

    def _start_by_claim(self, machine: Machine, request: str, read: list[CdiDevice]) -> None:
        for device in read:
            runs = {process.device for process in machine.of_pod(self.owners[request])}
            parts = device.parts[:1] if device.container.mps_pipe_directory else device.parts
            behind = [machine.behind(part.gpu, part.gi_id) for part in parts]
            missing = [uuid for uuid in behind if uuid and uuid not in runs]
            if missing:
                self.trace.tell("kubelet", "a container starts by claim", request, f"{machine.node} {missing}")
                told = ticket_of(device.ticket, device.container)
                self._start(machine, request, device.container, missing, told)

    def _start(
        self, machine: Machine, request: str, container: ContainerDevices, devices: list[str], ticket: str
    ) -> None:
        """Start what a container runs, on each of these devices, if that can be had now.

        A client that finds no directory of a daemon runs without MPS and says nothing of it. Where the directory is
        there and the daemon does not serve it (dead, after a fault, busy with another user), it ends and is started
        again.
        """
        pod, owner, home = self.pods[request], self.owners[request], home_of(container.mps_pipe_directory)
        if container.mps_pipe_directory and home in machine.mps.directories:
            daemon = machine.mps.alive(home)
            if daemon is None or daemon.fault or daemon.directory.uid != pod.uid:
                return
        else:
            home = ""
        told = limit_mib(container.pinned_memory_limit)
        daemon = machine.mps.alive(home)
        limit = min(told, daemon.memory_mib) if daemon is not None else told
        for uuid in devices:
            if pod.opens_after_s:
                self._start_waiting(machine, request, machine.start_waiting(owner, uuid, home, limit, ticket))
            else:
                self._tell_started(machine, machine.start_process(owner, uuid, home, limit, ticket))

    def _start_waiting(self, machine: Machine, request: str, process: Process | None) -> None:
        """It computes something else first. One that does not find its device then ends, and is started again."""
        for hear in self.on_waiting if process is not None else ():
            hear(machine, process)

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


def _used(container: ContainerDevices) -> list[str]:
    devices = [uuid for uuid in container.visible_devices.split(",") if uuid]
    return devices[:1] if container.mps_pipe_directory else devices
