"""
The load of a benchmark: which pods come and go when. The same options give the same load.

Pod names begin with the run's own; requests are a mix of profiles, or a workload.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import msgspec

from sluice.contracts.bus.codec import NOT_READABLE
from sluice.contracts.reasons import shorten
from sluice.contracts.toml_tables import toml_text_of
from sluice.mig.profile_name import ProfileName, ProfileNameError

REQUESTS_MAX = 100_000
DOCUMENTS_MAX = 200
"""Pods per file that come and go together."""
NAMESPACE = "sluice-bench"
_WORKLOAD_KEYS = frozenset(
    {"id", "namespace", "annotations", "resources", "priority", "cpu", "memory", "node_selector", "uid"}
)


class LoadError(ValueError):
    """Invalid options of a load. One sentence with a valid example."""


@dataclass(frozen=True, slots=True)
class BenchPod:
    """One pod: its name, when it comes (s after the start), when it goes (None: at the end), its manifest."""

    name: str
    at_s: float
    until_s: float | None
    manifest: dict[str, Any]


@dataclass(frozen=True, slots=True)
class BenchFile:
    """One file of the folder: pods that come and go together."""

    name: str
    at_s: float
    until_s: float | None
    text: str


def mix_of(text: str) -> dict[str, int]:
    """`1g.5gb=6,2g.10gb=3` as parts by profile. Raises LoadError."""
    parts: dict[str, int] = {}
    for piece in text.split(","):
        profile, _, weight = piece.strip().partition("=")
        try:
            ProfileName.parse(profile)
        except ProfileNameError:
            profile = ""
        if not profile or profile in parts or not (weight or "1").isdecimal() or int(weight or "1") < 1:
            raise LoadError(
                f"--mix {text!r}: {piece.strip()!r} must be 1g.5gb=6 for instance, parts from 1, each profile once"
            )
        parts[profile] = int(weight or "1")
    return parts


def even(run: str, *, requests: int, mix: str, rate: float, burst: int) -> list[BenchPod]:
    """`requests` pods of a mix, evenly mixed: all at once (`rate` 0), or `rate` a second, `burst` of them at a time.

    Raises LoadError."""
    _check_requests(requests)
    if not 0 <= rate < inf or burst < 1:
        raise LoadError(f"--rate {rate:g} --burst {burst}: a rate from 0 (all at once), a burst from 1")
    parts = mix_of(mix)
    given = dict.fromkeys(parts, 0)
    pods = []
    for number in range(requests):
        # The profile furthest behind its part of the mix is next.
        profile = max(parts, key=lambda each: parts[each] * (number + 1) / sum(parts.values()) - given[each])
        given[profile] += 1
        at_s = number // burst * burst / rate if rate else 0.0
        name = f"{run}-{number:06}"
        manifest = _manifest(name, NAMESPACE, {"sluice.dev/profile": profile})
        pods.append(BenchPod(name, at_s, None, manifest))
    return pods


def _check_requests(requests: int) -> None:
    if not 1 <= requests <= REQUESTS_MAX:
        raise LoadError(f"--requests {requests}: must be from 1 to {REQUESTS_MAX}")


def replayed(run: str, lines: Iterable[str], *, speed: float, requests: int) -> list[BenchPod]:
    """The first `requests` arrivals of a workload (docs/simulate.md), `speed` times as fast. Raises LoadError.

    What a line asks for is not judged here: a wrong ask is refused by the system, and counted so."""
    if not 0 < speed < inf:
        raise LoadError(f"--speed {speed:g}: must be more than 0")
    _check_requests(requests)
    there: dict[str, int] = {}
    pods: list[BenchPod] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        at_s, arriving, leaving = _event(line, number)
        if arriving is None:
            gone = there.pop(leaving, None)
            if gone is not None:
                pods[gone] = replace(pods[gone], until_s=at_s / speed)
        elif len(pods) < requests:
            there[arriving["id"]] = len(pods)
            pods.append(_replayed(f"{run}-{len(pods):06}", at_s / speed, arriving, number))
    if not pods:
        raise LoadError("the workload holds no arrival")
    return pods


def _event(line: str, number: int) -> tuple[float, dict[str, Any] | None, str]:
    """When, and which pod arrives or leaves. Raises LoadError."""
    try:
        found = msgspec.json.decode(line)
    except NOT_READABLE as error:
        raise LoadError(f"line {number} of the workload is no JSON: {error}") from None
    at = found.get("at") if isinstance(found, dict) else None
    if not isinstance(at, int | float) or isinstance(at, bool) or at < 0:
        raise LoadError(f"line {number} of the workload: at = {shorten(toml_text_of(at))}: must be seconds from 0 on")
    arriving, leaving = found.get("arrive"), found.get("depart")
    if isinstance(leaving, str):
        return float(at), None, leaving
    if isinstance(arriving, dict) and isinstance(arriving.get("id"), str):
        return float(at), arriving, ""
    raise LoadError(f"line {number} of the workload must hold `arrive` with an `id`, or `depart`")


def _replayed(name: str, at_s: float, arrive: dict[str, Any], number: int) -> BenchPod:
    unknown = sorted(arrive.keys() - _WORKLOAD_KEYS)
    if unknown:
        raise LoadError(
            f"line {number} of the workload: arrive.{shorten(unknown[0])} is not known; "
            f"known: {', '.join(sorted(_WORKLOAD_KEYS))}"
        )
    namespace = arrive.get("namespace", "default")
    manifest = _manifest(name, str(namespace), _object(arrive, "annotations", number))
    container = manifest["spec"]["containers"][0]
    resources = {"limits": {key: str(value) for key, value in _object(arrive, "resources", number).items()}}
    requests = {key: str(arrive[key]) for key in ("cpu", "memory") if key in arrive}
    container["resources"] = {**resources, **({"requests": requests} if requests else {})}
    if "uid" in arrive:
        container["securityContext"] = {"runAsUser": arrive["uid"]}
    if "node_selector" in arrive:
        manifest["spec"]["nodeSelector"] = arrive["node_selector"]
    if "priority" in arrive:
        manifest["spec"]["priority"] = arrive["priority"]
    return BenchPod(name, at_s, None, manifest)


def _object(arrive: dict[str, Any], key: str, number: int) -> dict[str, Any]:
    """The object under a key, empty where there is none. Raises LoadError for anything else."""
    found = arrive.get(key)
    if found is not None and not isinstance(found, dict):
        written = shorten(toml_text_of(found))
        raise LoadError(f"line {number} of the workload: arrive.{key} = {written}: must be an object, as in a manifest")
    return found or {}


def _manifest(name: str, namespace: str, annotations: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "annotations": annotations},
        "spec": {"containers": [{"name": "main", "image": "bench"}]},
    }


def files_of(pods: Sequence[BenchPod]) -> list[BenchFile]:
    """The pods as manifest files, in the order of coming: those that come and go together share one, up to a limit."""
    groups: dict[tuple[float, float | None], list[BenchPod]] = {}
    for pod in pods:
        groups.setdefault((pod.at_s, pod.until_s), []).append(pod)
    files = []
    for (at_s, until_s), group in groups.items():
        for start in range(0, len(group), DOCUMENTS_MAX):
            some = group[start : start + DOCUMENTS_MAX]
            text = "".join(f"---\n{msgspec.json.encode(pod.manifest).decode()}\n" for pod in some)  # JSON is YAML
            files.append(BenchFile(f"{some[0].name}.yaml", at_s, until_s, text))
    return sorted(files, key=lambda file: file.at_s)


def fleet_text(nodes: int, gpus: int, model: str) -> str:
    """A fleet file of `nodes` nodes with instant devices. Raises LoadError."""
    if not (1 <= nodes <= 20_000 and 1 <= gpus <= 64):
        raise LoadError(f"--nodes {nodes} --gpus {gpus}: 1 to 20000 nodes, 1 to 64 GPUs each")
    quoted = msgspec.json.encode(model).decode()
    return (
        f'[[node]]\nname = "bench"\ncount = {nodes}\ncpu_cores = 256\nmemory_mib = 2097152\npods = 1000\n'
        f"gpus = [{{ model = {quoted}, count = {gpus}, mig = true }}]\n[node.timing]\ncreate_ms = 0\ndestroy_ms = 0\n"
    )
