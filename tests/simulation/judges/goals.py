"""What is still missing once faults have stopped, as sentences: answers, leaks, and what the last pod left."""

from dataclasses import replace

from simulation.judges.claims import ClaimJudge, devices_of, fit_together
from simulation.judges.cordons import CordonJudge
from simulation.judges.gpu_tables import Span, fits_in, overlap
from simulation.judges.jobs import JobJudge, whole_job
from simulation.judges.judge import Judge
from simulation.judges.moves import sizes_that_serve
from simulation.judges.pods_apart import ApartJudge
from simulation.judges.pods_per_node import PodsPerNode
from simulation.judges.quotas import QuotaJudge
from simulation.judges.share_limits import Domain, Held, held_by, overfull
from simulation.judges.shared_devices import instances_of
from simulation.plans.pods import Device, Pod
from simulation.world.agents import AgentHost
from simulation.world.broker import Broker
from simulation.world.fixed_layouts import fits_on, profiles_there
from simulation.world.hardware import OPERATOR, Gpu, Machine
from simulation.world.manifest_folder import Folder, Kubelets

from sluice.contracts import messages as msg
from sluice.contracts.bus.events import Stream
from sluice_node_agent.core import journal_records


class Goals:
    """Looks at the whole world at once."""

    def __init__(
        self, broker: Broker, judge: Judge, folder: Folder, kubelets: Kubelets, agents: dict[str, AgentHost]
    ) -> None:
        self.broker = broker
        self.judge = judge
        self.folder = folder
        self.kubelets = kubelets
        self.agents = agents
        self.limits: QuotaJudge | None = None
        """What namespaces may have; everything where there is none."""
        self.jobs: JobJudge | None = None
        """Which pods are granted together."""
        self.cordons: CordonJudge | None = None
        """What operators have taken out of use; nothing where there is none."""
        self.crowds: PodsPerNode | None = None
        """How many pods a node takes; any number where there is none."""
        self.apart: ApartJudge | None = None
        """Which pods may not be beside each other."""
        self.claims: ClaimJudge | None = None
        """Which nodes hand devices over by ResourceClaim."""

    def _values(self) -> dict[str, msg.AnyMessage | None]:
        """Last values. A binding of before a wipe that landed late binds nothing (P-063)."""
        now, current = self.broker.clockwork.now, {"", self.broker.values.incarnation(Stream.BOOK)}
        return {
            entry.subject: entry.message
            for stream in (Stream.BOOK, Stream.STATE)
            for entry in self.broker.values.snapshot(stream, (), now)
            if not isinstance(entry.message, msg.Bound) or entry.message.incarnation in current
        }

    # -- all answered, nothing leaked -----------------------------------------------------------------------------

    def settled(self) -> list[str]:
        """What is missing until every pod of the folder has its answer and hardware is what was granted."""
        values = self._values()
        missing: list[str] = []
        wanted: dict[str, msg.Bound] = {}
        asked = [(s, message) for s, message in values.items() if isinstance(message, msg.AllocationRequested)]
        asked_for: dict[str, dict[str, msg.AllocationRequested]] = {}
        for subject, message in asked:
            asked_for.setdefault(message.name, {})[subject.rpartition(".")[2]] = message
        for pod in self.folder.pods.values():
            missing += self._answered(pod, asked_for.get(pod.name, {}), values, wanted)
        for subject, message in asked:
            if message.name not in self.folder.pods:
                missing.append(f"{subject} asks for a pod that is gone")
        lost = [one.held.allocation for _, one in asked if one.held is not None and self._is_lost_there(one)]
        missing += self._nothing_else_held([*wanted, *lost, *self._promised(values)])
        missing += self._hardware_is(wanted, lost)
        return [*missing, *(self.cordons.unfinished(values) if self.cordons is not None else ())]

    def _answered(
        self,
        pod: Pod,
        asked: dict[str, msg.AllocationRequested],
        values: dict[str, msg.AnyMessage | None],
        wanted: dict[str, msg.Bound],
    ) -> list[str]:
        """What is missing of one pod. `asked` are the requests that stand for it, by their ids."""
        if pod.ask.end == "rejected":
            for request in asked:  # an edit that is refused leaves the pod as it was
                answer = values.get(f"sluice.binding.{request}")
                if isinstance(answer, msg.Bound):
                    wanted[answer.allocation] = answer
            said = [
                m for m in values.values() if isinstance(m, msg.RequestRejected) and self.folder.is_from(pod, m.origin)
            ]
            return [] if len(said) == 1 else [f"{pod.name}: {len(said)} rejections, one is due"]
        if len(asked) != 1:
            return [f"{pod.name}: {len(asked)} requests, one is due"]
        request, message = next(iter(asked.items()))
        if [claim.container for claim in message.claims] != list(pod.ask.containers):
            return [f"{pod.name}: an older ask stands"]
        answer = values.get(f"sluice.binding.{request}")
        if pod.ask.end == "refused":
            return [] if isinstance(answer, msg.Refused) else [f"{pod.name}: {answer}, a refusal is due"]
        match answer:
            case msg.Bound():
                wanted[answer.allocation] = answer
                runs = not pod.runs or self.kubelets.runs(request)
                return [*self._serves(pod, answer), *([] if runs else [f"{pod.name}: bound, and does not run"])]
            case msg.Refused() if answer.request_revision < message.revision:
                return self._waits(pod, values.get(f"sluice.waiting.{request}"))
            case None | msg.Waived():
                waiting = values.get(f"sluice.waiting.{request}")
                return [] if self._is_lost_there(message) else self._waits(pod, waiting)
            case _:
                return [f"{pod.name}: {request} has no answer but {answer}"]

    def _is_lost_there(self, asked: msg.AllocationRequested) -> bool:
        """Its source knows where it is pinned, and there it was lost and cannot be made again: its agent says so."""
        held = asked.held
        is_known = held is not None and held.allocation in self.judge.bookings
        return held is not None and is_known and self._is_kept_out(self.agents[held.node].machine, held.allocation)

    def _waits(self, pod: Pod, waiting: msg.AnyMessage | None) -> list[str]:
        """A request that is not served has reasons, and would really fit nowhere."""
        if not isinstance(waiting, msg.Pending):
            return [f"{pod.name}: has no answer at all"]
        gpus = {node: self._usable(node) for node in self.agents}
        waits = self.jobs.may_wait(pod, list(self.folder.pods.values()), gpus) if self.jobs is not None else None
        if waits is not None:
            lets = self.limits is None or self.limits.lets(pod.namespace, lambda row, mig: whole_job(pod, row, mig=mig))
            return [] if waits or not lets else [f"{pod.name}: waits, and its whole job would fit"]
        node = self._could_fit(pod)
        return [f"{pod.name}: waits, and would fit on {node}"] if node else []

    def _is_let(self, pod: Pod) -> bool:
        """Whether the limits of its namespace would let a pod have any of the places that would do."""
        return self.limits is None or self.limits.lets(pod.namespace, pod.counts_on)

    def _serves(self, pod: Pod, bound: msg.Bound) -> list[str]:
        booking = self.judge.bookings[bound.allocation]
        if bound.allocation in self.judge.sizes.changed:  # it was resized since
            machine = self.judge.machines[booking.node]
            processes = [process for process in machine.of_pod(booking.owner) if process.home]
            undone = self.judge.sizes.undone(bound, booking, processes, machine)
            return [undone] if undone and bound.allocation not in self.judge.failed else []
        larger = self._let_larger(pod, booking)
        wrong = [self._serves_as(pod, booking, devices, larger=larger) for devices in devices_of(pod)]
        return [] if [] in wrong else wrong[0]

    def _serves_as(self, pod: Pod, booking: msg.Booking, devices: tuple[Device, ...], *, larger: bool) -> list[str]:
        left = [replace(device, larger=device.larger or larger) for device in devices]
        for device in booking.devices:
            gpu = self.agents[booking.node].machine.gpus[device.gpu]
            fitting = next((d for d in left if _is_served(d, device, gpu)), None)
            if fitting is None:
                return [f"{pod.name}: {device} is not what is asked for"]
            left.remove(fitting)
        return [f"{pod.name}: {len(left)} devices are missing"] if left else []

    def _let_larger(self, pod: Pod, booking: msg.Booking) -> bool:
        """Whether larger profiles were allowed when a place was chosen: how it was says nothing once it is there."""
        asked = self.judge.asked.get((booking.request, booking.request_revision))
        texts = self.folder.written[pod.name]
        wrote = any(device.larger for text in texts for device in text.ask.devices)
        return wrote and asked is not None and asked.leeway.substitute != "no"

    def _promised(self, values: dict[str, msg.AnyMessage | None]) -> list[str]:
        """What is held for requests that wait for others: one place each, and only while one asks."""
        promised: dict[str, str] = {}
        for node in self.agents:
            for allocation, grant in self.judge.promises(node).items():
                request = grant.booking.request
                asked = values.get(f"sluice.request.{request}")
                if isinstance(grant, msg.Grant) and isinstance(asked, msg.AllocationRequested):
                    promised.setdefault(request, allocation)
        return list(promised.values())

    def _nothing_else_held(self, wanted: list[str]) -> list[str]:
        return [
            f"{allocation} is held on {node} without a request"
            for node in self.agents
            for allocation in dict.fromkeys(held.allocation for held in self.judge.held(node))
            if allocation not in wanted
        ]

    def _hardware_is(self, wanted: dict[str, msg.Bound], lost: list[str]) -> list[str]:
        """Instances, tickets and devices are those of the bound; a slice kept out may have its recreated instance."""
        missing: list[str] = []
        for node, host in self.agents.items():
            machine = host.machine
            bound = {a: b for a, b in wanted.items() if b.node == node and not self._is_kept_out(machine, a)}
            on_node = [a for a in (*wanted, *lost) if self.judge.bookings[a].node == node]
            halves = self._places_of(machine, [a for a in on_node if self._is_kept_out(machine, a)])
            places = self._places_of(machine, list(bound))
            seen = {
                (gpu.uuid, instance.profile.name, instance.span): instance.uuid
                for gpu in machine.gpus.values()
                for instance in gpu.instances.values()
                if instance.maker != OPERATOR
            }
            kept = {seen.pop(place) for place in halves if place in seen and place not in places}
            there = sorted(seen)
            if places != there:
                missing.append(f"{node}: instances {there}, granted {places}")
            by_claim = [allocation for allocation, one in bound.items() if not one.ticket]
            tickets = sorted(
                (each.allocation, "" if each.allocation in by_claim else each.name) for each in machine.tickets.values()
            )
            if tickets != sorted((allocation, one.ticket) for allocation, one in bound.items()):
                missing.append(f"{node}: tickets {tickets}, bound {sorted(bound)}")
            missing += [
                f"{one.request}: device {uuid} does not exist"
                for one in bound.values()
                for container in one.containers
                for uuid in container.visible_devices.split(",")
                if uuid and machine.gpu_with(uuid) is None
            ]
            missing += self._daemons_are(machine, list(bound), kept)
        return missing

    def _places_of(self, machine: Machine, allocations: list[str]) -> list[tuple[str, str, Span]]:
        granted = [
            held_by(booking, device)
            for booking in (self.judge.bookings[allocation] for allocation in allocations)
            for device in booking.devices
            if machine.gpus[device.gpu].layout is None
        ]
        return sorted((gpu, *place) for gpu in machine.gpus for place in instances_of(granted, gpu) if place[0])

    def _daemons_are(self, machine: Machine, bound: list[str], kept: set[str]) -> list[str]:
        """Every home with a share has its daemon, and nothing else but `kept` has one; the same for compute modes."""
        homes = {
            state.uuid: device
            for allocation in bound
            for device, state in zip(
                self.judge.bookings[allocation].devices, self.judge.ready[allocation].devices, strict=True
            )
            if device.share is not None
        }
        daemons = sorted(d.device for d in machine.mps.listed.values() if d.alive and d.device not in kept)
        missing = [] if daemons == sorted(homes) else [f"{machine.node}: daemons {daemons}, homes {sorted(homes)}"]
        if sorted(machine.mps.directories) != sorted(machine.mps.listed):
            missing.append(f"{machine.node}: directories {sorted(machine.mps.directories)}, {machine.mps.listed}")
        missing += [
            f"{machine.node}: {gpu.uuid} is in the wrong compute mode"
            for gpu in machine.gpus.values()
            if gpu.exclusive != (gpu.uuid in homes)
        ]
        return missing

    def _is_kept_out(self, machine: Machine, allocation: str) -> bool:
        """Lost at a reboot, not to be made again beside what an operator made there since, and its agent says so."""
        beside = any(
            instance.maker == OPERATOR and machine.gpus[device.gpu].layout is None
            for device in self.judge.bookings[allocation].devices
            for instance in machine.gpus[device.gpu].instances.values()
        )
        return beside and any(
            isinstance(message, msg.SliceDegraded) and message.allocation == allocation
            for message in self._values().values()
        )

    def _could_fit(self, pod: Pod) -> str:
        """A node on which the pod would fit, each of its devices on a GPU of its own; empty when there is none."""
        rows = dict.fromkeys(gpu.row for host in self.agents.values() for gpu in host.machine.gpus.values())
        let = [sized.ask.devices for sized in sizes_that_serve(pod, rows) if self._is_let(sized)]
        let += devices_of(pod)[1:]
        for node in self.agents:
            if self.crowds is not None and not self.crowds.takes_more(node):
                continue
            if self.apart is not None and not self.apart.lets(pod, node):
                continue
            if self.claims is not None and not self.claims.lets(pod, node):
                continue
            gpus, held = self._usable(node), self.judge.held(node)
            domain = (pod.namespace, pod.uid)
            for devices in let:
                is_close = self._is_close(pod, devices)
                if self._fit_on_one(gpus, devices, held) if is_close else self._fit(gpus, devices, held, domain):
                    return node
        return ""

    def _is_close(self, pod: Pod, devices: tuple[Device, ...]) -> bool:
        return pod.one_gpu and len(devices) > 1 and all(device.modes == ("exclusive",) for device in devices)

    def _fit_on_one(self, gpus: list[Gpu], devices: tuple[Device, ...], held: list[Held]) -> bool:
        """Whether instances for all of these fit on one GPU. Of a fixed layout nothing is demanded."""
        for gpu in gpus:
            there = instances_of(held, gpu.uuid)
            there += [(one.profile.name, one.span) for one in gpu.instances.values() if one.maker == OPERATOR]
            if gpu.mig and gpu.layout is None and fit_together(gpu.row, there, devices):
                return True
        return False

    def _usable(self, node: str) -> list[Gpu]:
        gpus = self.agents[node].machine.gpus.values()
        return [gpu for gpu in gpus if self.cordons is None or self.cordons.may_be_used(node, gpu.uuid)]

    def _fit(self, gpus: list[Gpu], devices: tuple[Device, ...], held: list[Held], domain: Domain) -> bool:
        if not devices:
            return True
        for number, gpu in enumerate(gpus):
            on_gpu = [one for one in held if one.gpu == gpu.uuid]
            if _fits_on(gpu, on_gpu, devices[0], domain):
                rest = gpus[:number] + gpus[number + 1 :]
                if self._fit(rest, devices[1:], held, domain):
                    return True
        return False

    # -- nothing left ---------------------------------------------------------------------------------------------

    def empty(self) -> list[tuple[str, object]]:
        """What is left after all pods were removed, and where. Asked every second, so it is put into text when read."""
        left: list[tuple[str, object]] = []
        for subject, message in self._values().items():
            kind = subject.split(".")[1]
            over = (
                kind not in {"request", "ledger", "binding", "slice", "eviction"}
                or isinstance(message, (msg.Closed, msg.NodeOpened, msg.Released, msg.EvictionOver))
                or (isinstance(message, (msg.RequestWithdrawn, msg.SliceGone)) and message.closing)
            )
            if not over:
                left.append((subject, type(message).__name__))
        for node, host in self.agents.items():
            machine = host.machine
            left += [(node, found) for found in machine.tickets.values()]
            left += [(f"{node}'s CDI file", claim) for claim in machine.cdi]
            left += [(node, process) for _, process in machine.processes() if process.owner != OPERATOR]
            left += [
                (node, instance)
                for gpu in machine.gpus.values()
                for instance in gpu.instances.values()
                if instance.maker != OPERATOR
            ]
            left += [(node, found) for found in machine.mps.listed.values()]
            left += [(node, found) for found in machine.mps.directories.values()]
            left += [(f"{node} has EXCLUSIVE_PROCESS", gpu.uuid) for gpu in machine.gpus.values() if gpu.exclusive]
            left += [(f"{node}'s journal", record) for record in _alive(machine.journal)]
        return left

    def forgotten(self) -> list[str]:
        """What is left after the last closing message has expired."""
        return [
            f"{subject}: {type(message).__name__}"
            for subject, message in self._values().items()
            if subject.split(".")[1] in {"request", "binding", "slice", "waiting"} or isinstance(message, msg.Closed)
        ]


def _alive(journal: list[object]) -> list[object]:
    """The last record of everything that is not gone."""
    last: dict[object, object] = {}
    for record in journal:
        match record:
            case journal_records.SliceRecord():
                last[record.booking.allocation] = record
            case journal_records.Tombstone():
                last.pop(record.allocation, None)
            case journal_records.SharedDeviceRecord() | journal_records.SharedDeviceGone():
                last[record.home] = record
            case journal_records.WarmRecord() | journal_records.WarmGone():
                last[record.gpu, record.gi_id] = record
            case _:
                pass
    return [
        record
        for record in last.values()
        if isinstance(
            record, (journal_records.SliceRecord, journal_records.SharedDeviceRecord, journal_records.WarmRecord)
        )
    ]


def _fits_on(gpu: Gpu, held: list[Held], device: Device, domain: Domain) -> bool:
    """Whether one device would fit on a GPU beside what is held there: exclusively, in a home, or in a new one."""
    if gpu.layout is not None:
        return fits_on(gpu, held, device, domain)
    instances = instances_of(held, gpu.uuid)
    instances += [(one.profile.name, one.span) for one in gpu.instances.values() if one.maker == OPERATOR]
    if _is_room(gpu, instances, device.profile_on(gpu.row, mig=gpu.mig)):
        return True
    for mode in device.modes:
        if mode == "exclusive":
            continue
        share = device.share_on(gpu.row, mode, domain[1], mig=gpu.mig)
        largest = gpu.row.profiles[-1].name if gpu.mig else ""
        for profile, span in instances:
            theirs = [one.share for one in held if one.lives_with(share, span, domain) and one.share is not None]
            whole = device.want != "part" or profile == largest
            strange = [one for one in held if overlap(one.span, span) and not one.lives_with(share, span, domain)]
            if theirs and whole and not strange and not overfull(gpu.row, profile, [share, *theirs]):
                return True
        names = [row.name for row in gpu.row.profiles if "+" not in row.name] if gpu.mig else [""]
        for name in names:
            whole = device.want != "part" or name == largest
            if whole and not overfull(gpu.row, name, [share]) and _is_room(gpu, instances, name):
                return True
    return False


def _is_served(device: Device, grant: msg.DeviceGrant, gpu: Gpu) -> bool:
    """Whether a granted device is what is wanted; on a fixed GPU what is there serves a size."""
    if device.serves(grant, gpu.row, mig=gpu.mig):
        return True
    return gpu.layout is not None and grant.share is None and grant.profile in profiles_there(device, gpu)


def _is_room(gpu: Gpu, held: list[tuple[str, Span]], name: str | None) -> bool:
    """Whether an instance of this profile, or the whole GPU (an empty name), could be had beside those."""
    if name is None or (name == "") == gpu.mig:
        return False
    if not gpu.mig:
        return not held
    profile = gpu.row.profile(name)
    if profile is None or any(not held_name for held_name, _ in held):
        return False
    return any(fits_in(gpu.row, held, profile, span) for span in profile.placements)
