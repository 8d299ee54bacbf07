"""Parse a whole pod: the request of each container, in any one vocabulary, and the pod's options."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from sluice.contracts.kube.quantities import WHOLE_MAX
from sluice.contracts.messages import Claim
from sluice.contracts.reasons import RefusalReason
from sluice.contracts.request_syntax import fastgshare, hami, mig_resources, pod_options, sluice_keys, values
from sluice.contracts.request_syntax.device_limit import too_many
from sluice.contracts.request_syntax.keys import FASTGSHARE, HAMI, SLUICE, VOLCANO, VgpuNames, is_sluice_key
from sluice.contracts.request_syntax.pod_request import ContainerRequest, PodRequest, RequestLimits
from sluice.contracts.request_syntax.source_text import SourceValue, is_blank, never_raising

DEFAULT_LIMITS = RequestLimits()


@never_raising
def parse_pod(
    annotations: Mapping[str, object], containers: Sequence[ContainerRequest], *, limits: RequestLimits = DEFAULT_LIMITS
) -> PodRequest:
    """The request of a pod, in time linear in its keys; without claims there is none. The first mistake refuses it."""
    given = _sort_annotations(annotations, containers)
    reader = _Reader(given, limits)
    for position, container in enumerate(containers):
        reader.read(container, first=position == 0)
    return _with_pod_options(PodRequest(tuple(reader.claims), node_name=reader.node_name), given, reader)


@dataclass(slots=True)
class _PodAnnotations:
    pod: dict[str, SourceValue] = field(default_factory=dict)
    own: dict[str, dict[str, SourceValue]] = field(default_factory=dict)
    container_capabilities: dict[str, SourceValue] = field(default_factory=dict)
    """Driver capabilities by container; the pod's default for containers without their own is under the empty name."""
    fast: dict[str, SourceValue] = field(default_factory=dict)
    hami: dict[str, SourceValue] = field(default_factory=dict)


def _sort_annotations(annotations: Mapping[str, object], containers: Sequence[ContainerRequest]) -> _PodAnnotations:
    given, of_first = _PodAnnotations(), dict[str, SourceValue]()
    names = dict.fromkeys(container.name for container in containers)
    for key, raw in annotations.items():
        if is_blank(raw):
            continue
        written = SourceValue(key, raw)
        if is_sluice_key(key):
            _check_containers(written, containers)
            container, own_key = sluice_keys.container_and_key(written, names)
            if own_key in sluice_keys.POD_KEYS:
                given.pod[own_key] = written
            elif own_key == sluice_keys.DRIVER_CAPABILITIES:
                given.container_capabilities[container or ""] = written
            elif container is None:
                of_first[own_key] = written
            else:
                given.own.setdefault(container, {})[own_key] = written
        elif key.startswith(FASTGSHARE):
            _check_containers(written, containers)
            given.fast[fastgshare.key_of(written)] = written
        elif key in hami.ANNOTATIONS:
            given.hami[key] = written
    if of_first:
        first = containers[0].name
        given.own[first] = of_first | given.own.get(first, {})
    return given


def _check_containers(written: SourceValue, containers: Sequence[ContainerRequest]) -> None:
    if not containers:
        raise written.wrong(RefusalReason.UNKNOWN_CONTAINER, "the pod has no containers", "a container")


def _with_pod_options(request: PodRequest, given: _PodAnnotations, reader: "_Reader") -> PodRequest:
    first = next(iter((*given.pod.values(), *given.container_capabilities.values())), None)
    if first is not None and not request.claims:
        why = "it only says how to use a GPU, and the pod asks for none"
        raise first.contradiction(why, f"for instance {SLUICE}/memory beside it")
    if request.claims and given.hami and reader.words is None:
        stray, other = next(iter(given.hami.values())), reader.first_field
        if other is not None:
            raise stray.contradicts(other, "these are two vocabularies", "one of them")
    node_policy = reader.words.node_policy if reader.words is not None else ""
    gpu_policy = reader.words.gpu_policy if reader.words is not None else ""
    for own, foreign in (("node-policy", hami.NODE_POLICY), ("gpu-policy", hami.GPU_POLICY)):
        if own in given.pod and foreign in given.hami:
            raise given.pod[own].contradicts(given.hami[foreign], "these say the same thing", "one of them")
    if "node-policy" in given.pod:
        node_policy = values.node_policy(given.pod["node-policy"])
    if "gpu-policy" in given.pod:
        gpu_policy = values.gpu_policy(given.pod["gpu-policy"])
    priority = values.whole(given.pod["priority"], -WHOLE_MAX, WHOLE_MAX) if "priority" in given.pod else None
    leeway, group = pod_options.leeway_of(given.pod), pod_options.group_of(given.pod)
    return PodRequest(request.claims, priority, node_policy, gpu_policy, request.node_name, leeway, group)


class _Reader:
    def __init__(self, given: _PodAnnotations, limits: RequestLimits) -> None:
        self._given = given
        self._limits = limits
        self.claims: list[Claim] = []
        self.node_name = ""
        self.words: hami.HamiPodOptions | None = None
        """HAMi's annotations, once a container uses its resources."""
        self.first_field: SourceValue | None = None

    def read(self, container: ContainerRequest, *, first: bool) -> None:
        """Take in one container. Raises RequestSyntaxError."""
        own = self._given.own.get(container.name, {})
        fast = self._given.fast if first else {}
        vgpus = {names.count: (names, hami.resources_of(container, names)) for names in (HAMI, VOLCANO)}
        migs = mig_resources.resources_of(container)
        spoken = [own, fast, *(asked for _, asked in vgpus.values()), migs]
        firsts = [next(iter(each.values())) for each in spoken if each]
        if len(firsts) > 1:
            raise firsts[1].contradicts(firsts[0], "these are two vocabularies for one container", "one of them")
        claim: Claim | None = None
        if own:
            claim = sluice_keys.claim_of(container, own, self._limits)
            mig_resources.check_memory(claim, own)
        elif fast:
            pod = fastgshare.read(container, fast)
            claim, self.node_name = pod.claim, pod.node_name
        elif migs:
            claim = mig_resources.claim_of(container, migs, self._words(HAMI), self._limits)
        else:
            for names, asked in vgpus.values():
                if asked:
                    claim = hami.claim_of(container, asked, names, self._words(names), self._limits)
        chosen = pod_options.chosen_for(container, claim, self._given.container_capabilities, self._limits)
        if claim is not None:
            claim = msgspec.structs.replace(claim, driver_capabilities=chosen) if chosen else claim
            self._add(claim, next(each for each in spoken if each))

    def _words(self, names: VgpuNames) -> hami.HamiPodOptions:
        words = hami.pod_options_of(self._given.hami, names)
        self.words = words
        return words

    def _add(self, claim: Claim, given: Mapping[str, SourceValue]) -> None:
        self.claims.append(claim)
        given_field = given.get("gpus", given.get("shares", next(iter(given.values()))))
        if self.first_field is None:
            self.first_field = given_field
        many = too_many(self.claims, self._limits.max_gpus_per_node)
        if many is not None:
            why = f"with this container the pod asks for {many.asked} devices on one node"
            raise given_field.too_large(why, many.allowed)
