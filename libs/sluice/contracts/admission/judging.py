"""
Judge a pod before it is created: its request, and all reasons to refuse it, in the order a person reads.

A refusal of the request itself comes first; refusals of the rest of the pod follow.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from sluice.contracts.admission import by_hand
from sluice.contracts.admission.amounts import problems_of_amounts
from sluice.contracts.admission.asks import (
    Asked,
    StoredAsk,
    asks_at_all,
    stored_from,
    understand,
    with_variables,
)
from sluice.contracts.admission.default_modes import with_default_mode
from sluice.contracts.admission.environment import problems_of_env
from sluice.contracts.admission.problems import Problem, refused
from sluice.contracts.admission.rules import AdmissionRules
from sluice.contracts.admission.shapes import Container, Pod, Spec
from sluice.contracts.admission.volumes import problems_of_mounts, problems_of_volumes
from sluice.contracts.kube.names import ENV_DRIVER_CAPABILITIES, LABEL_IGNORE
from sluice.contracts.messages import HostNeeds
from sluice.contracts.pod_specs import read_host_needs, with_node
from sluice.contracts.reasons import Refusal
from sluice.contracts.request_syntax import RequestLimits
from sluice.contracts.request_syntax.keys import SLUICE
from sluice.contracts.request_syntax.sluice_keys import DRIVER_CAPABILITIES

NODE_NAME = "fastgshare/node_name"
"""The annotation that names a node beside the spec."""


MIRROR = "kubernetes.io/config.mirror"
"""The kubelet's own picture of a static pod, which runs already."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A pod's ask: as it was written, as it is stored (with defaults), and as it is understood."""

    before: StoredAsk
    stored: StoredAsk
    asked: Asked


def is_left_alone(
    namespace: str, labels: Mapping[str, Any], annotations: Mapping[str, Any], exempt: Collection[str]
) -> bool:
    """Whether Sluice has nothing to do with a pod, whatever it asks for: it runs already, or somebody said so."""
    return namespace in exempt or LABEL_IGNORE in labels or MIRROR in annotations


def read_ask(
    annotations: Mapping[str, object], spec: Mapping[str, Any], limits: RequestLimits, *, default_mode: str = ""
) -> Ask | Refusal | None:
    """The ask of a pod that nobody has reviewed before; None when it asks for no GPU. Never raises."""
    before = stored_from(annotations, spec)
    if isinstance(before, Refusal):
        return before
    if not asks_at_all(before):
        return None
    asked = understand(before, spec, limits)
    if isinstance(asked, Refusal):
        return asked
    if not asked.pod.claims:
        return None
    written, before = before, with_variables(before, asked, spec)
    asked = understand(before, spec, limits)
    if isinstance(asked, Refusal):
        return _as_its_variable(asked, written, before)
    return Ask(before, *with_default_mode(before, asked, spec, limits, default_mode))


def _as_its_variable(refusal: Refusal, written: StoredAsk, stored: StoredAsk) -> Refusal:
    """A refusal of a key that `with_variables` added names the variable, for its owner wrote no such key."""
    if refusal.field not in stored.annotations or refusal.field in written.annotations:
        return refusal
    container = refusal.field.removesuffix(f".{SLUICE}/{DRIVER_CAPABILITIES}")
    return msgspec.structs.replace(refusal, field=f"spec.containers[{container}].env[{ENV_DRIVER_CAPABILITIES}]")


def problems_of_new(pod: Pod, ask: Ask | Refusal | None, rules: AdmissionRules) -> list[Problem]:
    """All that is wrong with a pod that is to be created, its ask first."""
    marks = [*by_hand.problems_of_marks(pod), *by_hand.problems_of_grants(pod)]
    if ask is None:
        return marks
    if isinstance(ask, Refusal):
        return [refused(ask), *marks, *problems_beside(pod, None, rules, is_new=True)]
    return [*marks, *problems_beside(pod, ask.asked, rules, is_new=True, written=ask.before)]


def problems_beside(
    pod: Pod, asked: Asked | None, rules: AdmissionRules, *, is_new: bool, written: StoredAsk | None = None
) -> Iterator[Problem]:
    """
    All that is wrong beside the ask. When that was refused (None), no container is known to get a GPU.

    Amounts are judged when the pod `is_new`, those of its ask as it was `written`: later ones are what others put back.
    """
    spec = pod.spec
    yield from by_hand.problems_of_place(spec)
    yield from by_hand.problems_of_privileges(spec, list(asked.pod.claims) if asked is not None else [], rules)
    yield from problems_of_volumes(spec, rules)
    for path, container in _named(spec):
        claim = asked.claim_for(container.name) if asked is not None else None
        if is_new:
            yield from problems_of_amounts(path, container, _asked_by(container, written))
        yield from problems_of_env(path, container, claim, rules, later=not is_new)
        yield from problems_of_mounts(path, container, claim)
        yield from by_hand.problems_of_privileged(path, container, rules)


def problems_of_all_amounts(pod: Pod, written: StoredAsk) -> Iterator[Problem]:
    """What the API server would have refused about the GPU resources of any container."""
    for path, container in _named(pod.spec):
        yield from problems_of_amounts(path, container, _asked_by(container, written))


def _asked_by(container: Container, written: StoredAsk | None) -> Collection[str]:
    return container.asked() if written is None else written.resources.get(container.name, {})


def needs_of(spec: Mapping[str, Any], asked: Asked, namespace: str, labels: Mapping[str, str]) -> HostNeeds | Refusal:
    """What the pod of that namespace and those labels needs of its node, with the node that its annotations name."""
    needs = read_host_needs(spec, namespace, labels)
    return needs if isinstance(needs, Refusal) else with_node(needs, asked.pod.node_name, NODE_NAME)


def _named(spec: Spec) -> Iterator[tuple[str, Container]]:
    for path, containers in (("spec.containers", spec.containers), ("spec.initContainers", spec.init_containers)):
        for container in containers or ():
            yield f"{path}[{container.name}]", container
