"""Pods as people write them, and what the judge knows of each without asking any of the parsers under test."""

from dataclasses import dataclass, replace
from fractions import Fraction
from json import dumps
from math import ceil
from random import Random
from typing import Literal

from simulation.judges.gpu_tables import GpuRow, at_least
from simulation.judges.share_limits import gives, instance_mib

from sluice.contracts.messages import DeviceGrant, Share

Want = Literal["profile", "whole", "memory", "percentage", "partition", "part"]
Mode = Literal["exclusive", "mps", "fractional"]
End = Literal["bound", "rejected", "refused"]


@dataclass(frozen=True, slots=True)
class Device:
    """The shape of one device that a pod wants. A `part` is a fractional share of a home that is all of its GPU."""

    want: Want
    profile: str = ""
    amount: int = 0
    """MiB, or percent of the SMs of the largest profile; of a share, MiB."""
    modes: tuple[Mode, ...] = ("exclusive",)
    partition: int = 0
    """Percent of a GPU's SMs, for a fractional share; without `amount` it has the same part of the memory."""
    quota: tuple[int, int] = (1000, 1000)
    """The part of the time that a fractional share is sure of, and the most that it may have, in thousandths."""
    larger: bool = False
    """Whether a larger profile may serve."""

    def serves(self, grant: DeviceGrant, row: GpuRow, *, mig: bool) -> bool:
        """Whether a granted device is what is wanted."""
        share = grant.share
        if share is None:
            if "exclusive" in self.modes and self.profile_on(row, mig=mig) == (grant.profile or ""):
                return True
            given = row.profile(grant.profile or "")
            return self.larger and given is not None and at_least(row, given, self.profile)
        wanted = self.share_on(row, share.mode, share.uid, mig=mig) if share.mode in self.modes else None
        whole = grant.profile in {None, row.profiles[-1].name}
        return share == wanted and (whole or self.want != "part")

    def share_on(self, row: GpuRow, mode: Literal["mps", "fractional"], uid: int, *, mig: bool) -> Share:
        """The share of a GPU of this model that serves this."""
        memory_mib = self.amount or self._part_mib(row, mig=mig)
        if mode == "mps":
            return Share(mode=mode, uid=uid, memory_mib=memory_mib)
        request, limit = self.quota
        sizes = {"sm_partition": self.partition, "quota_request_permille": request, "quota_limit_permille": limit}
        return Share(mode=mode, uid=uid, memory_mib=memory_mib, **sizes)

    def profile_on(self, row: GpuRow, *, mig: bool) -> str | None:
        """Which profile of a model serves this; "" for a whole GPU without MIG, None when none does."""
        if "exclusive" not in self.modes:
            return None
        if not mig:
            return "" if self.want == "whole" else None
        if self.want == "profile":
            return self.profile if row.profile(self.profile) is not None else None
        if self.want == "whole":
            return row.profiles[-1].name
        enough = [
            found
            for found in row.profiles
            if (found.memory_mib >= self.amount if self.want == "memory" else self._has_sms(row, found.multiprocessors))
        ]
        enough.sort(key=lambda found: (found.compute_slices, found.memory_mib, len(found.name), found.name))
        return enough[0].name if enough else None

    def counts_on(self, row: GpuRow, *, mig: bool) -> tuple[int, int, int] | None:
        """The most that this may count on such a GPU: a device, MiB, thousandths of compute slices. None: it cannot."""
        found: list[tuple[int, int, int]] = []
        name = self.profile_on(row, mig=mig)
        if name is not None:
            profile = row.profile(name)
            size = (profile.memory_mib, profile.compute_slices) if profile else (row.memory_mib, row.compute_slices)
            found.append((1, size[0], size[1] * 1000))
        if self.modes != ("exclusive",):
            memory_mib = self.amount or self._part_mib(row, mig=mig)
            part = Fraction(max(1, memory_mib), gives(row, mig=mig)[0])
            part = max(part, Fraction(self.partition, 100)) if "mps" in self.modes else Fraction(self.partition, 100)
            found.append((1, memory_mib, ceil(part * row.compute_slices * 1000)))
        return (1, max(c[1] for c in found), max(c[2] for c in found)) if found else None

    def _part_mib(self, row: GpuRow, *, mig: bool) -> int:
        """As much of the memory as of the SMs: where the home is all of its GPU exactly, else as MIG cuts it."""
        exact = gives(row, mig=mig)[0] * self.partition // 100
        return exact if self.want == "part" or not mig else min(exact, instance_mib(row, self.partition))

    def _has_sms(self, row: GpuRow, sms: int) -> bool:
        return sms * 100 >= self.amount * row.profiles[-1].multiprocessors


@dataclass(frozen=True, slots=True)
class Ask:
    """Annotations, the containers they are for, and what must come of it."""

    annotations: tuple[tuple[str, str], ...]
    containers: tuple[str, ...]
    devices: tuple[Device, ...]
    end: End = "bound"


@dataclass(frozen=True, slots=True)
class Terms:
    """What a pod says of other pods of its namespace, by the label `app`, and of the ports of its host."""

    app: str = ""
    apart_from: str = ""
    """The app of which none may be on its host."""
    spread: bool = False
    """Whether no host may have more than one more of its app than any other."""
    port: int = 0
    """Of its host; 0 for none."""

    def labels(self) -> dict[str, str]:
        return {"app": self.app} if self.app else {}

    def spec(self) -> dict[str, object]:
        """What of its spec says so, but for the port."""
        found: dict[str, object] = {}
        if self.apart_from:
            term = {"topologyKey": _HOST, "labelSelector": {"matchLabels": {"app": self.apart_from}}}
            found["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
        if self.spread:
            selector = {"matchLabels": {"app": self.app}}
            term = {"topologyKey": _HOST, "labelSelector": selector, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
            found["topologySpreadConstraints"] = [term]
        return found

    def container(self) -> dict[str, object]:
        """What of its first container says so."""
        return {"ports": [{"containerPort": self.port, "hostPort": self.port}]} if self.port else {}


_HOST = "kubernetes.io/hostname"


@dataclass(frozen=True, slots=True)
class Pod:
    """One manifest file with one pod."""

    name: str
    ask: Ask
    runs: bool
    """Whether its container starts a process on its devices."""
    lingers_s: float
    """How long its processes live on after the object is gone."""
    namespace: str = "lab"
    user: int | None = None
    """The user that it says it runs as."""
    preempts: bool = True
    """Whether others may be evicted for it; else its spec says `preemptionPolicy: Never`."""
    opens_after_s: float = 0.0
    """How long its processes run before they open their devices."""
    terms: Terms = Terms()
    by_claim: bool = False
    """Whether its kubelet hands its devices over by ResourceClaim."""
    shares_claim: bool = False
    """Whether another pod uses that claim, too: its processes are those of the pod."""
    alternatives: tuple[str, ...] = ()
    """Profiles of which one instance serves instead of what it asks for, in this order."""
    one_gpu: bool = False
    """Whether all of its instances have to be on one GPU."""

    @property
    def uid(self) -> int:
        """The user of its processes: root where nothing is said."""
        return self.user or 0

    def counts_on(self, row: GpuRow, mig: bool) -> tuple[int, int, int] | None:
        """The most that all its devices together may count on such a GPU; None where one of them cannot be there."""
        each = [device.counts_on(row, mig=mig) for device in self.ask.devices]
        found = [counts for counts in each if counts is not None]
        if len(found) < len(each):
            return None
        return (sum(c[0] for c in found), sum(c[1] for c in found), sum(c[2] for c in found))

    @property
    def file(self) -> str:
        return f"{self.name}.yaml"

    def text(self) -> str:
        lines = ["apiVersion: v1", "kind: Pod", "metadata:", f"  name: {self.name}"]
        lines += [f"  namespace: {self.namespace}"]
        lines += [f"  labels: {dumps(self.terms.labels())}"] if self.terms.app else []
        lines += ["  annotations:", *(f'    {key}: "{value}"' for key, value in self.ask.annotations)]
        lines += ["spec:", *(() if self.preempts else ("  preemptionPolicy: Never",))]
        lines += ["  securityContext:", f"    runAsUser: {self.user}"] if self.user is not None else []
        lines += [f"  {key}: {dumps(value)}" for key, value in self.terms.spec().items()]
        lines += ["  containers:"]
        for number, container in enumerate(self.ask.containers):
            lines += [f"    - name: {container}", "      image: cuda"]
            lines += [f"      {key}: {dumps(each)}" for key, each in self.terms.container().items() if not number]
        return "\n".join(lines) + "\n"

    def asking(self, ask: Ask) -> "Pod":
        return replace(self, ask=ask)


def draw_pod(number: int, dice: Random) -> Pod:
    lingers = 4 * dice.random() if dice.random() < 0.3 else 0.2 * dice.random()
    return Pod(f"pod-{number}", draw_ask(dice), runs=dice.random() < 0.7, lingers_s=lingers)


def draw_ask(dice: Random) -> Ask:
    """Some ask: mostly one slice by profile, now and then everything else that people write."""
    roll = dice.random()
    if roll < 0.62:
        name = dice.choice(_PROFILES)
        return _one(("sluice.dev/profile", name), Device("profile", profile=name))
    if roll < 0.70:
        return _one(("sluice.dev/gpus", "1"), Device("whole"))
    if roll < 0.76:
        amount = dice.choice((3000, 8000, 12000))
        return _one(("sluice.dev/memory", f"{amount}Mi"), Device("memory", amount=amount))
    if roll < 0.82:
        percent = dice.choice((10, 25, 50))
        return _one(("sluice.dev/sm-percentage", str(percent)), Device("percentage", amount=percent))
    if roll < 0.88:
        name = dice.choice(("1g.5gb", "2g.10gb", "3g.20gb", "1g.6gb"))
        keys = (("sluice.dev/profile", name), ("sluice.dev/gpus", "2"))
        return Ask(keys, ("main",), (Device("profile", profile=name),) * 2)
    if roll < 0.93:
        first, second = dice.choice(("1g.5gb", "2g.10gb")), dice.choice(("1g.5gb", "3g.20gb"))
        keys = (("left.sluice.dev/profile", first), ("right.sluice.dev/profile", second))
        return Ask(keys, ("left", "right"), (Device("profile", profile=first), Device("profile", profile=second)))
    return dice.choice(_NEVER)


def shared(pod: Pod, dice: Random) -> Pod:
    """The same pod, as one that asks for a share: of one of a few trust domains, so that homes are really shared."""
    namespace, user = dice.choice((("lab", None), ("lab", None), ("lab", None), ("lab", 1000), ("den", None)))
    return replace(pod, ask=draw_share(dice), namespace=namespace, user=user)


def draw_share(dice: Random) -> Ask:
    roll = dice.random()
    amount = dice.choice((900, 1500, 2400, 4000, 9000))
    memory = ("sluice.dev/memory", f"{amount}Mi")
    if roll < 0.45:
        return mps(amount)
    if roll < 0.75:
        percent = dice.choice((5, 10, 10, 25, 40))
        return fractional(percent, amount if dice.random() < 0.6 else 0)
    if roll < 0.83:
        keys = (("sluice.dev/mode", "exclusive,mps"), memory)
        return Ask(keys, ("main",), (Device("memory", amount=amount, modes=("exclusive", "mps")),))
    if roll < 0.88:
        device = Device("part", modes=("fractional",), partition=50)
        return _one(("sluice.dev/shares", "0.5"), device)
    if roll < 0.94:
        keys = (("sluice.dev/mode", "mps"), memory, ("sluice.dev/gpus", "2"))
        return Ask(keys, ("main",), (Device("memory", amount=amount, modes=("mps",)),) * 2)
    keys = (
        ("left.sluice.dev/profile", "1g.5gb"),
        ("right.sluice.dev/mode", "mps"),
        ("right.sluice.dev/memory", f"{amount}Mi"),
    )
    devices = (Device("profile", profile="1g.5gb"), Device("memory", amount=amount, modes=("mps",)))
    return Ask(keys, ("left", "right"), devices)


def mps(memory_mib: int) -> Ask:
    keys = (("sluice.dev/mode", "mps"), ("sluice.dev/memory", f"{memory_mib}Mi"))
    return Ask(keys, ("main",), (Device("memory", amount=memory_mib, modes=("mps",)),))


def fractional(percent: int, memory_mib: int = 0) -> Ask:
    """A share of SMs; without memory it has the same part of that."""
    keys = (("sluice.dev/sm-partition", str(percent)),)
    if memory_mib:
        keys += (("sluice.dev/memory", f"{memory_mib}Mi"),)
    device = Device("partition", amount=memory_mib, modes=("fractional",), partition=percent)
    return Ask(keys, ("main",), (device,))


def timed(ask: Ask, request_permille: int, limit_permille: int) -> Ask:
    """The same fractional share for a part of the time."""
    (device,) = ask.devices
    quotas = (("request", request_permille), ("limit", limit_permille))
    keys = tuple((f"sluice.dev/quota-{name}", f"{permille / 1000:g}") for name, permille in quotas)
    return replace(
        ask, annotations=(*ask.annotations, *keys), devices=(replace(device, quota=(request_permille, limit_permille)),)
    )


def _one(key: tuple[str, str], device: Device) -> Ask:
    return Ask((key,), ("main",), (device,))


_PROFILES = (
    "1g.5gb", "1g.5gb", "1g.5gb", "1g.5gb+me", "1g.10gb", "2g.10gb", "2g.10gb", "3g.20gb", "3g.20gb", "4g.20gb",
    "7g.40gb", "1g.6gb", "1g.6gb", "2g.12gb", "2g.12gb+me", "4g.24gb",
)  # fmt: skip
DEVICES_MAX = 4
"""So many whole GPUs the allocator lets one pod have; its source would let it ask for more."""
REFUSED = Ask((("sluice.dev/gpus", str(DEVICES_MAX + 1)),), ("main",), (), "refused")
_NEVER = (
    _one(("sluice.dev/profile", "9g.90gb"), Device("profile", profile="9g.90gb")),
    REFUSED,
    Ask((("sluice.dev/gpus", "0"),), ("main",), (), "rejected"),
    Ask((("sluice.dev/sm-percentage", "101"),), ("main",), (), "rejected"),
    Ask((("sluice.dev/profile", "large"),), ("main",), (), "rejected"),
)
