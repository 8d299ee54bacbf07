"""
Find pod templates in objects of any kind, and how many pods a controller would create from each.

Templates are found by their shape, `...: {spec: {containers: [...]}}` below the object's `spec`, so that the kinds of
Kubernetes (https://kubernetes.io/docs/concepts/workloads/controllers/) and resources of others that carry templates
(Kubeflow's jobs and notebooks, RayCluster, JobSet, LeaderWorkerSet, Argo's Rollout, Knative's Service) are read alike.
The number of pods is the product of what stands beside the templates on the way: `replicas`, or `parallelism` of a Job.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from math import prod
from typing import Any

from sluice.contracts.asking.keys import is_our_annotation
from sluice.contracts.refusals import shorten

PODS_MAX = 1000
"""Of one object: more are refused, for each is looked at."""
_ROLE = re.compile(r"(?:GroupSpecs?|ReplicaSpecs?|Specs?|Template)$")
_NOT_IN_A_NAME = re.compile(r"[^a-z0-9-]+")
_ROLE_CHARACTERS_MAX = 63


@dataclass(frozen=True, slots=True)
class PodTemplate:
    """A template at `path` (`spec.template`), of `count` pods. `role` tells it apart from others of its object."""

    path: str
    role: str
    metadata: Mapping[str, Any]
    spec: Mapping[str, Any]
    count: int


def pod_templates(value: Mapping[str, Any]) -> list[PodTemplate]:
    """The pod templates of one object that is no Pod, in their order. The only one needs no role."""
    spec = value.get("spec")
    found = list(_templates(spec, "spec", (), ())) if isinstance(spec, dict) else []
    return found if len(found) > 1 else [replace(each, role="") for each in found]


def not_handed_down(value: Mapping[str, Any], template: PodTemplate) -> Iterator[str]:
    """
    A warning of an ask on the object itself, which its pods do not have.

    Controllers of Kubernetes hand no annotations down; those of others may, as Kubeflow's for notebooks does.
    """
    metadata = value.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    if isinstance(annotations, dict) and str(value.get("apiVersion")).startswith(("apps/", "batch/")):
        for key in islice((key for key in annotations if is_our_annotation(key)), 1):
            where = f"{template.path}.metadata.annotations"
            why = f"the pods of a {shorten(str(value.get('kind')), 63)} do not have it"
            yield f"metadata.annotations[{shorten(key)}]: {why}; write it in {where}"


def _templates(value: Any, path: str, roles: tuple[str, ...], counts: tuple[int, ...]) -> Iterator[PodTemplate]:
    """Every template in a value. Its depth is that of the text, which is bounded."""
    if isinstance(value, list):
        for at, each in enumerate(value):
            yield from _templates(each, f"{path}[{at}]", (*roles[:-1], _name(each) or f"{roles[-1]}-{at}"), counts)
    if not isinstance(value, dict):
        return
    counts = (*counts, *_counted(value))
    for key, each in value.items():
        spec = each.get("spec") if isinstance(each, dict) else None
        here = (*roles, _ROLE.sub("", key))
        if isinstance(spec, dict) and isinstance(spec.get("containers"), list):
            metadata = each.get("metadata")
            metadata = metadata if isinstance(metadata, dict) else {}
            count = prod((*counts, *_of_a_group(value, key)))
            yield PodTemplate(f"{path}.{key}", _role(here), metadata, spec, count)
        else:
            yield from _templates(each, f"{path}.{key}", here, counts)


def _counted(value: Mapping[str, Any]) -> Iterator[int]:
    """How often what is in this mapping is there."""
    replicas, parallelism, completions = (_number(value.get(key)) for key in ("replicas", "parallelism", "completions"))
    if replicas is not None:
        yield replicas
    if parallelism is not None:
        yield parallelism if completions is None else min(parallelism, completions)


def _of_a_group(value: Mapping[str, Any], key: str) -> Iterator[int]:
    """LeaderWorkerSet: `size` pods in each group, one of them the leader where that has a template of its own."""
    size = _number(value.get("size"))
    if key == "workerTemplate" and size is not None:
        yield max(size - 1, 0) if "leaderTemplate" in value else size


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _name(value: Any) -> str:
    """What an item of a list is called: JobSet's `name`, Ray's `groupName`."""
    named = [value.get(key) for key in ("name", "groupName")] if isinstance(value, dict) else []
    return next((each for each in named if isinstance(each, str)), "")


def _role(path: tuple[str, ...]) -> str:
    """The nearest name on the way that is no word of the shape alone (`template`), as part of a pod's name."""
    words = [_NOT_IN_A_NAME.sub("-", word.lower()).strip("-") for word in path]
    role = next((word for word in reversed(words) if word not in {"", "template", "pod", "spec", "job"}), "")
    return role[:_ROLE_CHARACTERS_MAX].strip("-")
