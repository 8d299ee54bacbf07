"""Judges places on GPUs by brute force: could the hardware hold all this at once, and may these tenants share?

It reads the hardware's tables as plain data (`libs/sluice/mig/catalog.toml`, or any document of that form) and grants
as plain JSON, keeps nothing but lists, and looks at a whole GPU again after every call. It shares no code with what it
judges: no mistake in `sluice` can hide here.

What is legal on a GPU with MIG is from the NVIDIA MIG user guide: instances of known profiles at the starts listed for
them, no memory slice twice, and never more compute slices, engines of a kind, or instances of one profile than the GPU
has. An engine's budget is the most that any one profile is given. Percents of a GPU with MIG are of its largest
profile, for more SMs cannot be had. Of MPS clients an instance serves the part that its compute slices are of the
GPU's (the same guide: 48 on 7g, 27 on 4g, 20 on 3g, 13 on 2g, 6 on 1g).
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WHOLE = "a whole GPU"


@dataclass(frozen=True)
class Profile:
    """One row of a model's table."""

    name: str
    compute_slices: int
    memory_mib: int
    sms: int
    engines: tuple[int, ...]
    most: int
    starts: tuple[int, ...]
    size: int


@dataclass(frozen=True)
class Tenant:
    """One device of one allocation: where it is, and what it takes there when it is a share."""

    allocation: str
    namespace: str
    profile: str | None
    start: int
    size: int
    share: Mapping[str, Any] | None


@dataclass
class Device:
    """One GPU and everything on it."""

    memory_mib: int
    sms: int
    slices: int
    compute_slices: int = 0
    profiles: Mapping[str, Profile] | None = None
    """None: without MIG."""
    clients: int = 48
    tenants: list[Tenant] = field(default_factory=list)


class Layouts:
    """Give it the GPUs, then every grant and release; each call says what is wrong from then on."""

    def __init__(self, tables: Mapping[str, Any], *, overcommit_percent: int = 100, taking_turns: bool = False) -> None:
        """`tables` is the parsed catalog. `overcommit_percent`: how much of a home's memory mps shares may book."""
        self._models = {model["key"]: model for model in tables["model"]}
        self._overcommit_percent = overcommit_percent
        self._taking_turns = taking_turns
        self.gpus: dict[str, Device] = {}
        self._gpus_of: dict[str, list[str]] = {}

    @classmethod
    def of_catalog(cls, path: Path, **rules: Any) -> "Layouts":
        """With the tables of a catalog file."""
        return cls(tomllib.loads(path.read_text(encoding="utf-8")), **rules)

    def has_model(self, uuid: str, key: str, *, mig: bool) -> None:
        """A GPU of a model of the tables."""
        model = self._models[key]
        rows = model["profiles"] if mig else ()
        profiles = {row["name"]: _profile(row) for row in rows}
        device = Device(model["memory_mib"], model["multiprocessors"], model["memory_slices"], model["compute_slices"])
        device.profiles = profiles if mig else None
        self.gpus[uuid] = device

    def has_plain(self, uuid: str, *, memory_mib: int, sms: int, slices: int = 1) -> None:
        """A GPU without MIG that is in no table."""
        self.gpus[uuid] = Device(memory_mib, sms, max(1, slices))

    def grant(self, allocation: str, namespace: str, devices: Sequence[Mapping[str, Any]]) -> list[str]:
        """These places are given to one allocation; what is wrong on their GPUs now."""
        if allocation in self._gpus_of:
            return [f"{allocation} is granted a second time"]
        touched = list(dict.fromkeys(device["gpu"] for device in devices))
        unknown = [f"{allocation} is granted {uuid}, which does not exist" for uuid in touched if uuid not in self.gpus]
        if unknown:
            return unknown
        self._gpus_of[allocation] = touched
        for device in devices:
            where = (device["profile"], device["start"], device["size"])
            self.gpus[device["gpu"]].tenants.append(Tenant(allocation, namespace, *where, device.get("share")))
        return [problem for uuid in touched for problem in self.problems(uuid)]

    def release(self, allocation: str) -> None:
        for uuid in self._gpus_of.pop(allocation):
            device = self.gpus[uuid]
            device.tenants = [tenant for tenant in device.tenants if tenant.allocation != allocation]

    def problems(self, uuid: str) -> list[str]:
        """Everything that is wrong on one GPU."""
        device = self.gpus[uuid]
        homes: dict[tuple[str | None, int, int], list[Tenant]] = {}
        for tenant in device.tenants:
            homes.setdefault((tenant.profile, tenant.start, tenant.size), []).append(tenant)
        found = [*_spans(device, list(homes))]
        for place, tenants in homes.items():
            found += self._home(device, place[0], tenants)
        return [f"{uuid}: {problem}" for problem in found]

    def _home(self, device: Device, name: str | None, tenants: list[Tenant]) -> Iterator[str]:
        """One place has one owner, or shares of one trust domain and one mode that fit together."""
        shares = [tenant.share for tenant in tenants if tenant.share is not None]
        label = name or WHOLE
        owners = ", ".join(tenant.allocation for tenant in tenants)
        if not shares:
            if len(tenants) > 1:
                yield f"{label} belongs to {owners} at once"
            return
        if len(shares) < len(tenants):
            yield f"{label} is shared and one tenant's own at once: {owners}"
        if len({(tenant.namespace, tenant.share["uid"]) for tenant in tenants if tenant.share is not None}) > 1:
            yield f"{label} has several trust domains: {owners}"
        modes = {share["mode"] for share in shares}
        if len(modes) > 1:
            yield f"{label} is shared in several modes: {owners}"
        profile = device.profiles.get(name) if device.profiles and name else None
        for problem in self._amounts(device, profile, shares, modes):
            yield f"{label}: {problem} ({owners})"

    def _amounts(
        self, device: Device, profile: Profile | None, shares: list[Mapping[str, Any]], modes: set[str]
    ) -> Iterator[str]:
        memory_mib = profile.memory_mib if profile else device.memory_mib
        clients = device.clients * profile.compute_slices // device.compute_slices if profile else device.clients
        asked_mib = sum(share["memory_mib"] for share in shares)
        limit_mib = memory_mib * self._overcommit_percent // 100 if modes == {"mps"} else memory_mib
        if asked_mib > limit_mib:
            yield f"its tenants take {asked_mib} of {limit_mib} MiB"
        if any(share["memory_mib"] > memory_mib for share in shares):
            yield f"a share is larger than its {memory_mib} MiB"
        if len(shares) > clients:
            yield f"it serves {clients} clients and has {len(shares)}"
        if modes == {"fractional"}:
            yield from self._sms(device, profile, shares)

    def _sms(self, device: Device, profile: Profile | None, shares: list[Mapping[str, Any]]) -> Iterator[str]:
        """Percent where the home is all of a GPU, else SMs rounded up; with turns the area: width times time."""
        for share in shares:
            if not 1 <= share["sm_partition"] <= 100:
                yield f"a share of {share['sm_partition']} % of the SMs"
        most = max((row.sms for row in (device.profiles or {}).values()), default=device.sms)
        have, takes, unit = 100, [share["sm_partition"] for share in shares], "percent"
        if profile is not None and profile.sms < most:
            have, takes, unit = profile.sms, [-(-take * most // 100) for take in takes], "SMs"
        if self._taking_turns:
            quotas = [share.get("quota_request_permille", 1000) for share in shares]
            have, takes = have * 1000, [take * quota for take, quota in zip(takes, quotas, strict=True)]
        if sum(takes) > have:
            yield f"shares take {sum(takes)} of {have} {unit}"


def _profile(row: Mapping[str, Any]) -> Profile:
    return Profile(
        row["name"],
        row["compute_slices"],
        row["memory_mib"],
        row["multiprocessors"],
        tuple(row["engines"]),
        row["max_instances"],
        tuple(row["starts"]),
        row["size"],
    )


def _spans(device: Device, places: list[tuple[str | None, int, int]]) -> Iterator[str]:
    if device.profiles is None:
        for place in places:
            if place != (None, 0, device.slices):
                yield f"{place} on a GPU that is given whole only"
        return
    rows: list[Profile] = []
    owner: dict[int, str] = {}
    for name, start, size in places:
        profile = device.profiles.get(name) if name else None
        if profile is None:
            yield f"no profile {name}"
            continue
        rows.append(profile)
        if start not in profile.starts or size != profile.size:
            yield f"{name} cannot be at {start} with {size} slices"
        for at in range(start, start + size):
            if owner.setdefault(at, f"{name}@{start}") != f"{name}@{start}":
                yield f"slice {at} is of {owner[at]} and of {name}@{start}"
    yield from _budgets(device, device.profiles, rows)


def _budgets(device: Device, profiles: Mapping[str, Profile], rows: list[Profile]) -> Iterator[str]:
    if sum(row.compute_slices for row in rows) > device.compute_slices:
        yield f"more than {device.compute_slices} compute slices"
    for kind, counts in enumerate(zip(*(row.engines for row in profiles.values()), strict=True)):
        used = sum(row.engines[kind] for row in rows)
        if used > max(counts):
            yield f"{used} engines of kind {kind}, the GPU has {max(counts)}"
    for row in profiles.values():
        if rows.count(row) > row.most:
            yield f"{rows.count(row)} instances of {row.name}, at most {row.most}"
