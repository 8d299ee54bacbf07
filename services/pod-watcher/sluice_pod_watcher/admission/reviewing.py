"""
One review: whose pod it is, what is wrong with it, and else what makes it wait for its slice.

The API server asks again when another webhook has changed the pod, and nothing in its question says so. What it changed
may be what the first review had read, so that stores the ask, and later ones read only what was stored.
"""

from collections.abc import Mapping
from typing import Any

from sluice.contracts.admission import advice, by_hand
from sluice.contracts.admission.asks import decode_stored, not_stored, understand
from sluice.contracts.admission.environment import problems_of_env
from sluice.contracts.admission.judging import Ask, is_left_alone, needs_of, problems_beside, problems_of_new, read_ask
from sluice.contracts.admission.problems import Problem, refused, tell
from sluice.contracts.admission.rules import AdmissionRules
from sluice.contracts.admission.shapes import NotAReview, Pod, Request, read_pod, read_request
from sluice.contracts.admission.volumes import problems_of_mounts
from sluice.contracts.kube.names import ANNOTATION_REQUEST, LABEL_MANAGED
from sluice.contracts.pod_specs import unknown_demands
from sluice.contracts.reasons import Refusal
from sluice.contracts.request_syntax import RequestLimits
from sluice_pod_watcher.admission.editing import edits, hiding, hiding_in_added
from sluice_pod_watcher.admission.responses import AdmissionResponse


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
    metadata = pod.metadata
    if is_left_alone(request.namespace, metadata.labels or {}, metadata.annotations or {}, rules.exempt_namespaces):
        return untouched
    return _review_pod(request, pod, rules)


def _review_pod(request: Request, pod: Pod, rules: AdmissionRules) -> AdmissionResponse:
    spec: Mapping[str, Any] = (request.object or {})["spec"]
    later = by_hand.went_through(pod)
    limits = rules.asks
    if later:
        ask = _ask_of_later(pod, spec, limits)
        problems = _problems_of_later(pod, ask, rules)
    else:
        found = read_ask(pod.metadata.annotations or {}, spec, limits, default_mode=rules.default_mode)
        problems = problems_of_new(pod, found, rules)
        if found is None:
            return _denied(request, problems) if problems else _hidden(request, pod)
        ask = found
    if not isinstance(ask, Refusal):
        needs = needs_of({**spec, "nodeName": None}, ask.asked, request.namespace, pod.metadata.labels or {})
        problems += [refused(needs)] if isinstance(needs, Refusal) else []
    if isinstance(ask, Refusal) or problems:
        return _denied(request, problems)
    advised = advice.on_later(pod, ask.asked) if later else advice.on_first(pod, ask.before, ask.stored, ask.asked)
    warnings = (*advised, *unknown_demands(spec))
    patch = tuple(edits(pod, ask.stored, ask.asked, rules))
    return AdmissionResponse(request.uid, patch=patch, warnings=tuple(dict.fromkeys(warnings)))


def _hidden(request: Request, pod: Pod) -> AdmissionResponse:
    """A pod that asks for no GPU, and gets none by its images either."""
    return AdmissionResponse(request.uid, patch=tuple(hiding(pod)), warnings=advice.on_no_ask(pod))


def _ask_of_later(pod: Pod, spec: Mapping[str, Any], limits: RequestLimits) -> Ask | Refusal:
    """The ask that the first review stored."""
    text = (pod.metadata.annotations or {})[ANNOTATION_REQUEST]
    stored = decode_stored(text)
    if isinstance(stored, Refusal):
        return stored
    asked = understand(stored, spec, limits)
    if isinstance(asked, Refusal):
        return asked
    if not asked.pod.claims:
        return not_stored(text, "it asks for no GPU, and the pod would wait for ever")
    return Ask(stored, stored, asked)


def _problems_of_later(pod: Pod, ask: Ask | Refusal, rules: AdmissionRules) -> list[Problem]:
    """What is beside an ask that cannot be read is not judged: it holds what was injected, for nobody knows whom."""
    grants = by_hand.problems_of_grants(pod)
    if isinstance(ask, Refusal):
        return [refused(ask), *grants]
    return [*grants, *problems_beside(pod, ask.asked, rules, is_new=False)]


def _denied(request: Request, problems: list[Problem]) -> AdmissionResponse:
    code, message = tell(problems)
    return AdmissionResponse(request.uid, allowed=False, code=code, message=message)


# -- ephemeral containers -----------------------------------------------------------------------------------------


def _review_ephemeral(request: Request, rules: AdmissionRules) -> AdmissionResponse | NotAReview:
    """
    A container to look into a pod that is there: harmless as it comes from `kubectl debug`, not with devices.

    Only those that are added are judged: what is there cannot be changed.
    """
    pod, old = read_pod(request.object), read_pod(request.old_object)
    if isinstance(pod, NotAReview):
        return pod
    present = set() if isinstance(old, NotAReview) else {each.name for each in old.spec.ephemeral_containers or ()}
    added = {each.name: each for each in pod.spec.ephemeral_containers or () if each.name not in present}
    problems: list[Problem] = []
    for name, container in added.items() if LABEL_MANAGED in (pod.metadata.labels or {}) else ():
        path = f"spec.ephemeralContainers[{name}]"
        problems += problems_of_env(path, container, None, rules)
        problems += problems_of_mounts(path, container, None)
        problems += by_hand.problems_of_privileged(path, container, rules)
    if problems:
        return _denied(request, problems)
    return AdmissionResponse(request.uid, patch=tuple(hiding_in_added(pod, added)))
