"""Separate what a LimitRange filled into a pod from what its owner wrote: a default never contradicts a request.

LimitRanger runs before any webhook and lists its defaults in an annotation, as `nvidia.com/gpu request for container
main; nvidia.com/gpu limit for init container prep`
(https://github.com/kubernetes/kubernetes/blob/master/plugin/pkg/admission/limitranger/admission.go). Written by hand,
it can only reduce a pod's request. Of several LimitRanges it names what the last one filled in."""

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace

from sluice.contracts.kube.quantities import NotANumber, parse_quantity
from sluice.contracts.request_syntax.keys import FASTGSHARE, HAMI, SLUICE, VOLCANO, is_gpu_resource
from sluice.contracts.request_syntax.pod_request import ContainerRequest
from sluice.contracts.request_syntax.sluice_keys import DRIVER_CAPABILITIES, POD_KEYS
from sluice.contracts.request_syntax.source_text import source_text_of

ANNOTATION = "kubernetes.io/limit-ranger"
CHARACTERS_MAX = 64 * 1024
"""Of the annotation. A container with ten resources needs some three hundred."""
_BEGINS = "LimitRanger plugin set: "
_PART = re.compile(r"(?P<names>[^;]+) (?P<part>request|limit) for (?:init )?container (?P<container>[a-z0-9-]{1,63})")

FilledDefaults = Mapping[str, Mapping[str, Container[str]]]
"""The resources that were filled in, by container and part (`request`, `limit`)."""


def filled_in(annotations: Mapping[str, object]) -> FilledDefaults:
    text = annotations.get(ANNOTATION)
    if not isinstance(text, str) or not text.startswith(_BEGINS) or len(text) > CHARACTERS_MAX:
        return {}
    found: dict[str, dict[str, frozenset[str]]] = {}
    for each in text.removeprefix(_BEGINS).split("; "):
        match = _PART.fullmatch(each)
        if match is not None:
            parts = found.setdefault(match["container"], {})
            parts[match["part"]] = parts.get(match["part"], frozenset()).union(match["names"].split(", "))
    return found


def without_defaults(
    annotations: Mapping[str, object], containers: Sequence[ContainerRequest], *, first: str
) -> tuple[ContainerRequest, ...]:
    """The containers without LimitRange defaults that add nothing; unnamed keys are those of `first`."""
    filled = filled_in(annotations)
    if not filled:
        return tuple(containers)
    annotated = _annotated(annotations, [each.name for each in containers], first)
    written = {each.name: _of_owner(each, filled.get(each.name, {})) for each in containers}
    asks = bool(annotated) or any(any(map(_is_positive, amounts.values())) for amounts in written.values())
    return tuple(
        _kept(each, written[each.name], annotated=each.name in annotated, others_ask=asks) for each in containers
    )


def _of_owner(container: ContainerRequest, filled: Mapping[str, Container[str]]) -> dict[str, object]:
    """The amounts of GPUs that a person wrote: LimitRanger did not fill in both request and limit."""
    found: dict[str, object] = {}
    for part, amounts in (("request", container.requests), ("limit", container.limits)):
        found |= {
            name: amount
            for name, amount in amounts.items()
            if is_gpu_resource(name) and name not in filled.get(part, ())
        }
    return found


def _kept(
    container: ContainerRequest, own: Mapping[str, object], *, annotated: bool, others_ask: bool
) -> ContainerRequest:
    def stays(name: str, amount: object) -> bool:
        if not is_gpu_resource(name) or name in own:
            return True
        if annotated or (own and not any(map(_is_positive, own.values()))):
            return False
        if not own:
            return not others_ask
        return _is_positive(amount) and _completes(name, own)

    return replace(
        container,
        limits={name: amount for name, amount in container.limits.items() if stays(name, amount)},
        requests={name: amount for name, amount in container.requests.items() if stays(name, amount)},
    )


def _completes(name: str, own: Iterable[str]) -> bool:
    """Whether a default fills what a request of its own family leaves open; memory and its percentage are one."""
    for family in (HAMI, VOLCANO):
        memory = (family.memory, family.memory_percentage)
        if name in family.resources and any(each in family.resources for each in own):
            return not (name in memory and any(each in memory for each in own))
    return False


def _is_positive(amount: object) -> bool:
    """Whether it is more than zero; invalid amounts are refused elsewhere."""
    size = parse_quantity(source_text_of(amount))
    return isinstance(size, NotANumber) or size != 0


def _annotated(annotations: Iterable[str], containers: Sequence[str], first: str) -> frozenset[str]:
    says_how = (*POD_KEYS, DRIVER_CAPABILITIES)
    found = set()
    for annotation in annotations:
        prefix, _, key = annotation.partition("/")
        if annotation.startswith(FASTGSHARE) or (prefix == SLUICE and key not in says_how):
            found.add(first)
        elif prefix.endswith(f".{SLUICE}") and key not in says_how:
            found.add(prefix.removesuffix(f".{SLUICE}"))
    return frozenset(found.intersection(containers))
