"""Judges what was on the devices against what was said on the bus and what pods lived, after a run.

It reads plain data (each state of each machine, messages with the broker's times, when each manifest was there)
and shares no code with what it judges. All times are unix seconds of one machine. What was said and not recorded proves
nothing here: where two things must agree, the devices' own log and the manifests are the truth.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

GIB_MIB = 1024
END = float("inf")


@dataclass(frozen=True)
class Limits:
    """How long things may take, in calm seconds and in any; generous, for what is forgotten stays forgotten."""

    released_s: float = 60.0
    answered_s: float = 60.0
    at_most_s: float = 240.0


@dataclass(frozen=True)
class Instance:
    """A compute instance that is there: where, and the UUID that its users see. No UUID is used twice."""

    node: str
    gpu: str
    gi_id: int
    profile: str
    start: int
    size: int
    uuid: str


@dataclass(frozen=True)
class Stay:
    """From when to when an instance was there; `until` is END for one that was never destroyed."""

    instance: Instance
    since: float
    until: float


@dataclass
class Pod:
    """A pod's manifest: when it was written, and when it was taken away."""

    name: str
    since: float
    until: float = END


@dataclass
class Slice:
    """What was said of one allocation."""

    allocation: str
    request: str
    shared: bool = False
    memory_mib: int = 0
    """Of each device, where it is shared."""
    devices: set[str] = field(default_factory=set)
    ready_at: float = END
    gone_at: float = END


@dataclass
class Calm:
    """The times in which nothing was wrong: between these disturbances (from, until)."""

    disturbances: Iterable[tuple[float, float]]

    def __post_init__(self) -> None:
        joined: list[tuple[float, float]] = []
        for begin, end in sorted(self.disturbances):
            if joined and begin <= joined[-1][1]:
                joined[-1] = joined[-1][0], max(joined[-1][1], end)
            else:
                joined.append((begin, end))
        self._begins = [begin for begin, _ in joined]
        self._ends = [end for _, end in joined]
        self._before = [0.0]
        for begin, end in joined:
            self._before.append(self._before[-1] + end - begin)

    def between(self, begin: float, end: float) -> float:
        """Calm seconds in between."""
        return end - begin - (self._disturbed(end) - self._disturbed(begin))

    def _disturbed(self, until: float) -> float:
        at = bisect_right(self._begins, until)
        if at == 0:
            return 0.0
        return self._before[at - 1] + min(until, self._ends[at - 1]) - self._begins[at - 1]


def violations(
    machines: Iterable[Sequence[tuple[float, dict]]],
    words: Iterable[tuple[float, str, dict]],
    pods: Iterable[Pod],
    calm: Calm,
    *,
    ended_at: float,
    limits: Limits = Limits(),
) -> list[str]:
    """Everything that must never happen, and did; `words` are time, subject and message in any order."""
    wrong: list[str] = []
    stays: list[Stay] = []
    for states in machines:
        wrong += _overlaps(states)
        stays += _stays(states)
    said = _Said(sorted(words, key=lambda word: word[0]))
    known = {pod.name: pod for pod in pods}
    by_uuid: dict[str, Stay] = {}
    for stay in stays:
        if stay.instance.uuid in by_uuid:
            wrong.append(f"{stay.instance} was there twice")
        by_uuid[stay.instance.uuid] = stay
    late = _Late(calm, ended_at, limits)
    return [
        *wrong,
        *_owned_twice(said),
        *_overfull(said, by_uuid),
        *_taken_away(said, known, by_uuid),
        *_left(said, known, stays, late),
        *_unanswered(said, known, late),
    ]


class _Said:
    """What the bus said of requests and slices."""

    def __init__(self, words: Sequence[tuple[float, str, dict]]) -> None:
        self.slices: dict[str, Slice] = {}
        self.names: dict[str, str] = {}
        """Request to pod."""
        self.bound: dict[str, list[tuple[float, str]]] = {}
        """Request to when it was bound to which allocation."""
        for at, subject, message in words:
            self._take(at, subject, message)

    def _take(self, at: float, subject: str, message: dict) -> None:
        match message["type"]:
            case "AllocationRequested":
                self.names[subject.rsplit(".", 1)[1]] = message["name"]
            case "Grant":
                booking = message["booking"]
                found = self._slice(booking["allocation"], booking["request"])
                self.names.setdefault(booking["request"], booking["name"])
                shares = [device["share"] for device in booking["devices"] if device.get("share")]
                found.shared = bool(shares)
                found.memory_mib = max((share["memory_mib"] for share in shares), default=0)
            case "SliceReady":
                found = self._slice(message["allocation"], message["request"])
                found.devices |= {device["uuid"] for device in message["devices"]}
                found.ready_at = min(found.ready_at, at)
            case "SliceGone":
                found = self._slice(message["allocation"], message["request"])
                found.gone_at = min(found.gone_at, at)
            case "Bound":
                self.bound.setdefault(message["request"], []).append((at, message["allocation"]))

    def _slice(self, allocation: str, request: str) -> Slice:
        return self.slices.setdefault(allocation, Slice(allocation, request))

    def owners(self) -> dict[str, list[Slice]]:
        """Device to the slices that were published with it."""
        found: dict[str, list[Slice]] = {}
        for one in self.slices.values():
            for uuid in one.devices:
                found.setdefault(uuid, []).append(one)
        return found


@dataclass(frozen=True)
class _Late:
    calm: Calm
    ended_at: float
    limits: Limits

    def is_over(self, calm_s: float, begin: float, end: float) -> bool:
        """Whether it took longer than it may. What has not ended lasts until the end of the run."""
        end = min(end, self.ended_at)
        return end - begin > self.limits.at_most_s or self.calm.between(begin, end) > calm_s


def _instances(node: str, state: dict) -> dict[str, list[dict]]:
    return {gpu["uuid"]: gpu["instances"] for gpu in state["gpus"] if gpu["instances"]}


def _overlaps(states: Sequence[tuple[float, dict]]) -> Iterator[str]:
    told = set()
    for at, state in states:
        for gpu, instances in _instances(state["node"], state).items():
            spans = sorted((each["start"], each["start"] + each["size"]) for each in instances)
            for one, other in pairwise(spans):
                if other[0] < one[1] and (gpu, one, other) not in told:
                    told.add((gpu, one, other))
                    yield f"{gpu} of {state['node']} has instances at {one} and {other} at once (at {at:.3f})"


def _stays(states: Sequence[tuple[float, dict]]) -> list[Stay]:
    there: dict[Instance, float] = {}
    done: list[Stay] = []
    for at, state in states:
        now = {
            Instance(state["node"], gpu, i["gi_id"], i["profile"], i["start"], i["size"], i["uuid"])
            for gpu, instances in _instances(state["node"], state).items()
            for i in instances
            if i["uuid"]
        }
        done += [Stay(gone, there.pop(gone), at) for gone in [each for each in there if each not in now]]
        for each in now:
            there.setdefault(each, at)
    return done + [Stay(each, since, END) for each, since in there.items()]


def _owned_twice(said: _Said) -> Iterator[str]:
    for uuid, owners in said.owners().items():
        if uuid.startswith("MIG-") and len(owners) > 1 and not all(one.shared for one in owners):
            yield f"{uuid} was given to {', '.join(sorted(one.allocation for one in owners))}"


def _overfull(said: _Said, stays: Mapping[str, Stay]) -> Iterator[str]:
    """Shares that are on one instance at once have no more memory than its profile's name says (never less)."""
    for uuid, owners in said.owners().items():
        if uuid not in stays:
            continue
        room_mib = _memory_mib(stays[uuid].instance.profile)
        for one in owners:
            beside = [other for other in owners if other.ready_at <= one.ready_at < other.gone_at]
            taken_mib = sum(other.memory_mib for other in beside)
            if taken_mib > room_mib:
                yield f"{uuid} has {room_mib} MiB, and {taken_mib} MiB of {[each.allocation for each in beside]}"


def _memory_mib(profile: str) -> int:
    """Of `3g.20gb`, `1g.5gb+me`: 20 GiB, 5 GiB."""
    return int(profile.partition(".")[2].partition("gb")[0]) * GIB_MIB


def _taken_away(said: _Said, pods: Mapping[str, Pod], stays: Mapping[str, Stay]) -> Iterator[str]:
    """From when a pod was bound until its manifest was taken away, its devices are there."""
    for request, bindings in said.bound.items():
        pod = pods.get(said.names.get(request, ""))
        if pod is None:
            yield f"{request} was bound and no pod asked"
            continue
        for allocation, at in {allocation: at for at, allocation in reversed(bindings)}.items():
            if at >= pod.until:
                continue
            for uuid in said.slices[allocation].devices if allocation in said.slices else ():
                if not uuid.startswith("MIG-"):
                    continue
                stay = stays.get(uuid)
                if stay is None or stay.since > at:
                    yield f"{pod.name} was bound to {uuid} before it was there"
                elif stay.until < pod.until:
                    lost_s = stay.until - at
                    yield f"{pod.name} lost {stay.instance} {lost_s:.3f} s after it was bound, and still wanted it"


def _left(said: _Said, pods: Mapping[str, Pod], stays: Iterable[Stay], late: _Late) -> Iterator[str]:
    owners = said.owners()
    is_over = all(pod.until < END for pod in pods.values())
    for stay in stays:
        if is_over and stay.until == END:
            yield f"{stay.instance} was never unmade"
            continue
        wanted = [_wanted_until(said, one, pods) for one in owners.get(stay.instance.uuid, ())]
        since = max([stay.since, *wanted])
        if since < END and late.is_over(late.limits.released_s, since, stay.until):
            whose = ", ".join(sorted(one.allocation for one in owners.get(stay.instance.uuid, ()))) or "no pod"
            yield f"{stay.instance} of {whose} was left for {min(stay.until, late.ended_at) - since:.3f} s"


def _wanted_until(said: _Said, one: Slice, pods: Mapping[str, Pod]) -> float:
    pod = pods.get(said.names.get(one.request, ""))
    return pod.until if pod is not None else 0.0


def _unanswered(said: _Said, pods: Mapping[str, Pod], late: _Late) -> Iterator[str]:
    first = {said.names.get(request, ""): bindings[0][0] for request, bindings in said.bound.items()}
    for pod in pods.values():
        answered = min(first.get(pod.name, END), pod.until)
        if late.is_over(late.limits.answered_s, pod.since, answered):
            yield f"{pod.name} waited {min(answered, late.ended_at) - pod.since:.3f} s for a slice"
