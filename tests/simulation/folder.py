"""The folder of manifests, and the containers that run on what their pods were given."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from simulation.clockwork import Clockwork
from simulation.hardware import Machine, Process
from simulation.pods import Pod
from simulation.trace import Trace

from sluice.contracts.exchange import Observed, Write
from sluice.contracts.messages import AllocationRequested, Bound, RequestWithdrawn

RESTART_S = 0.5


@dataclass(slots=True)
class Folder:
    """Files by name. `pods` are what is written in them now, `broken` the files that are being written just now."""

    files: dict[str, str] = field(default_factory=dict)
    pods: dict[str, Pod] = field(default_factory=dict)
    since: dict[str, float] = field(default_factory=dict)
    """When each pod was last changed by a person."""
    broken: dict[str, None] = field(default_factory=dict)
    on_change: list[Callable[[], None]] = field(default_factory=list)

    def put(self, pod: Pod, now: float) -> None:
        """A person writes or edits a file."""
        self.pods[pod.name], self.since[pod.name] = pod, now
        self.files[pod.file] = pod.text()
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
    Starts a container when its pod is bound, its ticket is there and its devices exist; starts it again after a reboot.

    Its processes end some time after the pod's file is removed or its request is withdrawn, never at once.
    """

    def __init__(self, clockwork: Clockwork, folder: Folder, machines: dict[str, Machine], trace: Trace) -> None:
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
            case RequestWithdrawn():
                self.end(request)
            case _:
                pass

    def told(self, event: object) -> None:
        """The pod-watcher has read that a pod is bound: its pod is pinned, and a kubelet knows of it from now on."""
        if isinstance(event, Observed) and isinstance(event.entry.message, Bound):
            bound = event.entry.message
            before = self.bound.get(bound.request)
            self.bound[bound.request] = bound
            if before != bound:
                self.clockwork.after(0.05 + self.dice.random(), lambda: self._try(bound.request))

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

        self.clockwork.after(pod.lingers_s, stop)

    def runs(self, request: str) -> bool:
        """Whether processes of this request's pod are on a device."""
        owner = self.owners.get(request)
        return any(process.owner == owner for machine in self.machines.values() for _, process in machine.processes())

    def _try(self, request: str) -> None:
        pod, bound = self.pods.get(request), self.bound.get(request)
        if pod is None or bound is None or not pod.runs or request in self.ended or self.runs(request):
            return
        machine = self.machines[bound.node]
        devices = [uuid for one in bound.containers for uuid in one.visible_devices.split(",") if uuid]
        ready = bound.ticket in machine.tickets and all(machine.gpu_with(uuid) is not None for uuid in devices)
        if not ready:
            self.clockwork.after(RESTART_S, lambda: self._try(request))
            return
        self.trace.tell("kubelet", "container started", request, f"{bound.node} {devices}")
        for uuid in devices:
            process = machine.start_process(self.owners[request], uuid)
            if process is not None:
                for hear in self.on_started:
                    hear(machine, process)
