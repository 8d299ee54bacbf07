"""Find pod templates in objects of any kind, and how many pods a controller would create from each.

By their shape, `...: {spec: {containers: [...]}}` below the object's `spec`: so custom resources (Kubeflow, RayCluster,
JobSet, LeaderWorkerSet, Argo's Rollout, Knative's Service) are read like
https://kubernetes.io/docs/concepts/workloads/controllers/. Counts beside the templates are multiplied."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from math import prod
from typing import Any

from sluice.contracts.reasons import Refusal, nearest, shorten
from sluice.contracts.request_syntax.keys import is_our_annotation
from sluice.contracts.request_syntax.source_text import SourceValue, Unquoted

PODS_MAX = 1000
"""Of one object: more are refused, as each is processed."""
_ROLE = re.compile(r"(?:GroupSpecs?|ReplicaSpecs?|Specs?|Template)$")
_NOT_IN_A_NAME = re.compile(r"[^a-z0-9-]+")
_ROLE_CHARACTERS_MAX = 63
_GROUPS = {
    "v1": ("Pod", "List", "PodList", "ReplicationController"),
    "apps": ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"),
    "batch": ("Job", "CronJob"),
    "scheduling.k8s.io": ("PriorityClass",),
}
"""The kinds of Kubernetes that are read, by the group of their `apiVersion`. Other groups may have any kind."""


@dataclass(frozen=True, slots=True)
class PodTemplate:
    """A template at `path` (`spec.template`), of `count` pods. `role` distinguishes several of one object."""

    path: str
    role: str
    metadata: Mapping[str, Any]
    spec: Mapping[str, Any]
    count: int
    wrong: Refusal | None = None
    """A number of pods that the API server would refuse."""


def pod_templates(value: Mapping[str, Any]) -> list[PodTemplate]:
    """The pod templates of one object that is not a Pod, in order. A single one needs no role."""
    spec = value.get("spec")
    found = list(_templates(spec, "spec", (), ())) if isinstance(spec, dict) else []
    if str(value.get("apiVersion", "v1")).partition("/")[0] not in _GROUPS:  # OpenKruise's BroadcastJob takes percents
        found = [replace(each, wrong=None) if each.wrong and "%" in each.wrong.value else each for each in found]
    return found if len(found) > 1 else [replace(each, role="") for each in found]


def meant(kind: object, version: object) -> tuple[str, str]:
    """The right kind and `apiVersion` of a misspelt object of Kubernetes, each empty if right (or no version)."""
    group = version.partition("/")[0] if isinstance(version, str) else ""
    if not isinstance(kind, str) or (kind != "Pod" and group not in {"", *_GROUPS}):
        return "", ""
    folded = {each.casefold(): each for kinds in _GROUPS.values() for each in kinds}
    if kind not in folded.values():
        return folded.get(nearest(kind[:63].casefold(), list(folded), cutoff=0.8), ""), ""
    right = next(group for group, kinds in _GROUPS.items() if kind in kinds)
    is_right = version is None or (group == right and (kind != "Pod" or version == "v1"))
    return "", "" if is_right else right if right == "v1" else f"{right}/v1"


def not_handed_down(value: Mapping[str, Any], template: PodTemplate) -> Iterator[str]:
    """A warning about a request on the object itself: controllers of Kubernetes do not copy annotations to pods."""
    metadata = value.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    if isinstance(annotations, dict) and str(value.get("apiVersion")).startswith(("apps/", "batch/")):
        for key in islice((key for key in annotations if is_our_annotation(key)), 1):
            where = f"{template.path}.metadata.annotations"
            why = f"the pods of a {shorten(str(value.get('kind')), 63)} do not have it"
            yield f"metadata.annotations[{shorten(key)}]: {why}; write it in {where}"


def _templates(
    value: Any, path: str, roles: tuple[str, ...], counts: tuple[int | Refusal, ...]
) -> Iterator[PodTemplate]:
    if isinstance(value, list):
        for at, each in enumerate(value):
            yield from _templates(each, f"{path}[{at}]", (*roles[:-1], _name(each) or f"{roles[-1]}-{at}"), counts)
    if not isinstance(value, dict):
        return
    counts = (*counts, *_counted(value, path))
    for key, each in value.items():
        spec = each.get("spec") if isinstance(each, dict) else None
        here = (*roles, _ROLE.sub("", key))
        if isinstance(spec, dict) and isinstance(spec.get("containers"), list):
            metadata = each.get("metadata")
            metadata = metadata if isinstance(metadata, dict) else {}
            every = (*counts, *_of_a_group(value, key, path))
            count = prod(each for each in every if isinstance(each, int))
            wrong = next((each for each in every if isinstance(each, Refusal)), None)
            yield PodTemplate(f"{path}.{key}", _role(here), metadata, spec, count, wrong)
        else:
            yield from _templates(each, f"{path}.{key}", here, counts)


def _counted(value: Mapping[str, Any], path: str) -> Iterator[int | Refusal]:
    names = ("replicas", "parallelism", "completions")
    replicas, parallelism, completions = (_number(value, key, path) for key in names)
    if replicas is not None:
        yield replicas
    if isinstance(completions, Refusal):
        yield completions
    elif isinstance(parallelism, int) and completions is not None:
        yield min(parallelism, completions)
    elif parallelism is not None:
        yield parallelism


def _of_a_group(value: Mapping[str, Any], key: str, path: str) -> Iterator[int | Refusal]:
    """LeaderWorkerSet: `size` pods per group, one of them the leader if that has a template of its own."""
    size = _number(value, "size", path)
    if key == "workerTemplate" and size is not None:
        yield max(size - 1, 0) if isinstance(size, int) and "leaderTemplate" in value else size


def _number(mapping: Mapping[str, Any], key: str, path: str) -> int | Refusal | None:
    value = mapping.get(key)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if not isinstance(value, str | Unquoted | int):
        return None
    allowed = f"a whole number, at least 0{', without quotes' if isinstance(value, str) else ''}"
    return SourceValue(f"{path}.{key}", value).invalid("not a number of pods", allowed).refusal


def _name(value: Any) -> str:
    named = [value.get(key) for key in ("name", "groupName")] if isinstance(value, dict) else []
    return next((each for each in named if isinstance(each, str)), "")


def _role(path: tuple[str, ...]) -> str:
    words = [_NOT_IN_A_NAME.sub("-", word.lower()).strip("-") for word in path]
    role = next((word for word in reversed(words) if word not in {"", "template", "pod", "spec", "job"}), "")
    return role[:_ROLE_CHARACTERS_MAX].strip("-")
