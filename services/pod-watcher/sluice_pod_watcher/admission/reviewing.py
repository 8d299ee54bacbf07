"""
One review: whose pod it is, what is wrong with it, and else what makes it wait for its slice.

The API server asks again when another webhook has changed the pod, and nothing in its question says so. What it changed
may be what the first review had read, so that stores the ask, and later ones read only what was stored.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sluice.contracts.asking import AskLimits
from sluice.contracts.kubernetes import ANNOTATION_REQUEST, LABEL_IGNORE, LABEL_MANAGED
from sluice.contracts.pod_specs import read_host_needs, with_node
from sluice.contracts.refusals import Refusal
from sluice_pod_watcher.admission import advice, by_hand
from sluice_pod_watcher.admission.amounts import problems_of_amounts
from sluice_pod_watcher.admission.asks import (
    Asked,
    StoredAsk,
    asks_at_all,
    decode_stored,
    not_stored,
    stored_from,
    understand,
)
from sluice_pod_watcher.admission.default_modes import with_default_mode
from sluice_pod_watcher.admission.editing import edits
from sluice_pod_watcher.admission.environment import problems_of_env
from sluice_pod_watcher.admission.problems import Problem, refused, tell
from sluice_pod_watcher.admission.responses import AdmissionResponse
from sluice_pod_watcher.admission.rules import AdmissionRules
from sluice_pod_watcher.admission.shapes import Container, NotAReview, Pod, Request, Spec, read_pod, read_request
from sluice_pod_watcher.admission.volumes import problems_of_mounts, problems_of_volumes

_MIRROR = "kubernetes.io/config.mirror"
"""The kubelet's own picture of a static pod, which runs already."""
_NODE_NAME = "fastgshare/node_name"
"""The annotation that names a node beside the spec."""


def review(raw: object, rules: AdmissionRules) -> AdmissionResponse | NotAReview:
    """
    The answer to an AdmissionReview (decoded JSON). Never raises, whatever it holds.

    A dry run has the same answer: nothing is done here that would have to be undone.
    """
    request = read_request(raw)
    if isinstance(request, NotAReview):
        return request
    untouched = AdmissionResponse(request.uid)
    if (request.kind.group, request.kind.kind) != ("", "Pod") or request.namespace in rules.exempt_namespaces:
        return untouched
    if request.sub_resource == "ephemeralcontainers" and request.operation == "UPDATE":
        return _review_ephemeral(request, rules)
    if request.sub_resource or request.operation != "CREATE":
        return untouched
    pod = read_pod(request.object)
    if isinstance(pod, NotAReview):
        return pod
    if _MIRROR in (pod.metadata.annotations or {}) or LABEL_IGNORE in (pod.metadata.labels or {}):
        return untouched
    return _review_pod(request, pod, rules)


@dataclass(frozen=True, slots=True)
class _Ask:
    """A pod's ask: as it was written, as it is stored (with defaults), and as it is understood."""

    before: StoredAsk
    stored: StoredAsk
    asked: Asked


def _review_pod(request: Request, pod: Pod, rules: AdmissionRules) -> AdmissionResponse:
    spec: Mapping[str, Any] = (request.object or {})["spec"]
    later = by_hand.went_through(pod)
    problems = [*([] if later else by_hand.problems_of_marks(pod)), *by_hand.problems_of_grants(pod)]
    ask = _ask_of_later(pod, spec, rules) if later else _ask_of_new(pod, spec, rules)
    if ask is None:
        return _denied(request, problems) if problems else AdmissionResponse(request.uid)
    if isinstance(ask, Refusal):
        if not later:  # later ones hold what was injected, and nobody knows for which container
            problems += _problems(pod, None, later=False, rules=rules)
        return _denied(request, [refused(ask), *problems])
    problems += _problems(pod, ask.asked, later=later, rules=rules)
    needs = read_host_needs({**spec, "nodeName": None})
    if not isinstance(needs, Refusal):
        needs = with_node(needs, ask.asked.pod.node_name, _NODE_NAME)
    if isinstance(needs, Refusal):
        problems.append(refused(needs))
    if problems:
        return _denied(request, problems)
    warnings = advice.on_later(pod, ask.asked) if later else advice.on_first(pod, ask.before, ask.stored)
    patch = tuple(edits(pod, ask.stored, ask.asked, rules))
    return AdmissionResponse(request.uid, patch=patch, warnings=tuple(dict.fromkeys(warnings)))


def _ask_of_new(pod: Pod, spec: Mapping[str, Any], rules: AdmissionRules) -> _Ask | Refusal | None:
    """The ask of a pod that is reviewed for the first time; None when it asks for no GPU."""
    limits = AskLimits(rules.max_gpus_per_node)
    before = stored_from(pod.metadata.annotations or {}, spec)
    if not asks_at_all(before):
        return None
    asked = understand(before, spec, limits)
    if isinstance(asked, Refusal):
        return asked
    if not asked.pod.claims:
        return None
    return _Ask(before, *with_default_mode(before, asked, spec, limits, rules.default_mode))


def _ask_of_later(pod: Pod, spec: Mapping[str, Any], rules: AdmissionRules) -> _Ask | Refusal:
    """The ask that the first review stored."""
    text = (pod.metadata.annotations or {})[ANNOTATION_REQUEST]
    stored = decode_stored(text)
    if isinstance(stored, Refusal):
        return stored
    asked = understand(stored, spec, AskLimits(rules.max_gpus_per_node))
    if isinstance(asked, Refusal):
        return asked
    if not asked.pod.claims:
        return not_stored(text, "it asks for no GPU, and the pod would wait for ever")
    return _Ask(stored, stored, asked)


def _denied(request: Request, problems: list[Problem]) -> AdmissionResponse:
    code, message = tell(problems)
    return AdmissionResponse(request.uid, allowed=False, code=code, message=message)


def _problems(pod: Pod, asked: Asked | None, *, later: bool, rules: AdmissionRules) -> Iterator[Problem]:
    """All that is wrong beside the ask. When that was refused (None), no container is known to get a GPU."""
    spec = pod.spec
    yield from by_hand.problems_of_place(spec)
    yield from by_hand.problems_of_privileges(spec, list(asked.pod.claims) if asked is not None else [], rules)
    yield from problems_of_volumes(spec, rules)
    for path, container in _named(spec):
        claim = asked.claim_for(container.name) if asked is not None else None
        if not later:
            yield from problems_of_amounts(path, container)
        yield from problems_of_env(path, container, claim, rules)
        yield from problems_of_mounts(path, container, claim)
        yield from by_hand.problems_of_privileged(path, container, rules)


def _named(spec: Spec) -> Iterator[tuple[str, Container]]:
    for path, containers in (("spec.containers", spec.containers), ("spec.initContainers", spec.init_containers)):
        for container in containers or ():
            yield f"{path}[{container.name}]", container


# -- ephemeral containers -----------------------------------------------------------------------------------------


def _review_ephemeral(request: Request, rules: AdmissionRules) -> AdmissionResponse | NotAReview:
    """
    A container to look into a pod that is there: harmless as it comes from `kubectl debug`, not with devices.

    Only those that are added are judged: what is there cannot be changed.
    """
    pod, old = read_pod(request.object), read_pod(request.old_object)
    if isinstance(pod, NotAReview):
        return pod
    if LABEL_MANAGED not in (pod.metadata.labels or {}):
        return AdmissionResponse(request.uid)
    present = set() if isinstance(old, NotAReview) else {each.name for each in old.spec.ephemeral_containers or ()}
    problems: list[Problem] = []
    for container in pod.spec.ephemeral_containers or ():
        if container.name not in present:
            path = f"spec.ephemeralContainers[{container.name}]"
            problems += problems_of_env(path, container, None, rules)
            problems += problems_of_mounts(path, container, None)
            problems += by_hand.problems_of_privileged(path, container, rules)
    return _denied(request, problems) if problems else AdmissionResponse(request.uid)
