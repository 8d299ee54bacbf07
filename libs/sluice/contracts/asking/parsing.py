"""
A whole pod: what each container asks for, in whichever vocabulary, and what is said of the pod at large.

A container speaks one vocabulary; two containers of a pod may speak different ones. What is of the pod at large
(priority, policies) may be said in our own words beside any of them. What is right in one vocabulary is not known here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from sluice.contracts.asking import (
    capabilities,
    counting,
    fastgshare,
    hami,
    mig_resources,
    pod_words,
    profiles,
    sluice_keys,
    values,
)
from sluice.contracts.asking.keys import FASTGSHARE, HAMI, SLUICE, VOLCANO, VgpuNames, is_sluice_key
from sluice.contracts.asking.pods import AskLimits, ContainerAsk, PodAsk
from sluice.contracts.asking.written import AskError, Written, is_silence
from sluice.contracts.messages import Claim
from sluice.contracts.quantities import WHOLE_MAX
from sluice.contracts.refusals import Refusal, RefusalReason

DEFAULT_LIMITS = AskLimits()


def parse_pod(
    annotations: Mapping[str, object], containers: Sequence[ContainerAsk], *, limits: AskLimits = DEFAULT_LIMITS
) -> PodAsk | Refusal:
    """
    What a pod with these annotations and containers (in their order) asks for; without claims it asks for nothing.

    The first thing that is wrong refuses the whole pod. Never raises, whatever the annotations and resources hold,
    and takes no longer than a look at each of them.
    """
    try:
        said = _said(annotations, containers)
        return _pod(said, containers, limits)
    except AskError as wrong:
        return wrong.refusal


@dataclass(slots=True)
class _Said:
    """The annotations of a pod, by whom they speak for."""

    pod: dict[str, Written] = field(default_factory=dict)
    """Our own keys of the pod at large."""
    own: dict[str, dict[str, Written]] = field(default_factory=dict)
    """Our own keys, by container."""
    capabilities: dict[str, Written] = field(default_factory=dict)
    """Driver capabilities, by container; of all that get a GPU and name none themselves under no name."""
    fast: dict[str, Written] = field(default_factory=dict)
    hami: dict[str, Written] = field(default_factory=dict)


def _said(annotations: Mapping[str, object], containers: Sequence[ContainerAsk]) -> _Said:
    said, of_first = _Said(), dict[str, Written]()
    names = dict.fromkeys(container.name for container in containers)
    for key, raw in annotations.items():
        if is_silence(raw):
            continue
        written = Written(key, raw)
        if is_sluice_key(key):
            _check_containers(written, containers)
            container, own_key = sluice_keys.container_and_key(written, names)
            if own_key in sluice_keys.POD_KEYS:
                said.pod[own_key] = written
            elif own_key == sluice_keys.DRIVER_CAPABILITIES:
                said.capabilities[container or ""] = written
            elif container is None:
                of_first[own_key] = written
            else:
                said.own.setdefault(container, {})[own_key] = written
        elif key.startswith(FASTGSHARE):
            _check_containers(written, containers)
            said.fast[fastgshare.key_of(written)] = written
        elif key in hami.ANNOTATIONS:
            said.hami[key] = written
    if of_first:
        first = containers[0].name
        said.own[first] = of_first | said.own.get(first, {})
    return said


def _check_containers(written: Written, containers: Sequence[ContainerAsk]) -> None:
    if not containers:
        raise written.wrong(RefusalReason.UNKNOWN_CONTAINER, "the pod has no containers", "a container")


# -- all of a pod -------------------------------------------------------------------------------------------------


def _pod(said: _Said, containers: Sequence[ContainerAsk], limits: AskLimits) -> PodAsk:
    reader = _Reader(said, limits)
    for position, container in enumerate(containers):
        reader.read(container, first=position == 0)
    ask = PodAsk(tuple(reader.claims), node_name=reader.node_name)
    return _with_pod_words(ask, said, reader)


def _with_pod_words(ask: PodAsk, said: _Said, reader: "_Reader") -> PodAsk:
    """The ask with what is said of the pod at large."""
    first = next(iter((*said.pod.values(), *said.capabilities.values())), None)
    if first is not None and not ask.claims:
        why = "it says how, and nothing says what: the pod asks for no GPU"
        raise first.wrong(RefusalReason.CONTRADICTION, why, f"for instance {SLUICE}/memory beside it")
    if ask.claims and said.hami and reader.words is None:
        stray, other = next(iter(said.hami.values())), reader.first_field
        if other is not None:
            raise stray.contradicts(other, "these are two vocabularies", "one of them")
    node_policy = reader.words.node_policy if reader.words is not None else ""
    gpu_policy = reader.words.gpu_policy if reader.words is not None else ""
    for own, foreign in (("node-policy", hami.NODE_POLICY), ("gpu-policy", hami.GPU_POLICY)):
        if own in said.pod and foreign in said.hami:
            raise said.pod[own].contradicts(said.hami[foreign], "these say the same thing", "one of them")
    if "node-policy" in said.pod:
        node_policy = values.node_policy(said.pod["node-policy"])
    if "gpu-policy" in said.pod:
        gpu_policy = values.gpu_policy(said.pod["gpu-policy"])
    priority = values.whole(said.pod["priority"], -WHOLE_MAX, WHOLE_MAX) if "priority" in said.pod else None
    leeway, group = pod_words.leeway_of(said.pod), pod_words.group_of(said.pod)
    return PodAsk(ask.claims, priority, node_policy, gpu_policy, ask.node_name, leeway, group)


class _Reader:
    """Goes through the containers, one after the other."""

    def __init__(self, said: _Said, limits: AskLimits) -> None:
        self._said = said
        self._limits = limits
        self.claims: list[Claim] = []
        self.node_name = ""
        self.words: hami.PodWords | None = None
        """HAMi's annotations, once a container has asked with resources."""
        self.first_field: Written | None = None
        """What the first claim was asked with."""

    def read(self, container: ContainerAsk, *, first: bool) -> None:
        """Take in one container. Raises AskError."""
        own = self._said.own.get(container.name, {})
        fast = self._said.fast if first else {}
        vgpus = {names.count: (names, hami.resources_of(container, names)) for names in (HAMI, VOLCANO)}
        migs = mig_resources.resources_of(container)
        spoken = [own, fast, *(asked for _, asked in vgpus.values()), migs]
        self._check_one_vocabulary([next(iter(each.values())) for each in spoken if each])
        claim: Claim | None = None
        if own:
            claim = sluice_keys.claim_of(container, own, self._limits)
            profiles.check_memory(claim, own)
        elif fast:
            pod = fastgshare.read(container, fast)
            claim, self.node_name = pod.claim, pod.node_name
        elif migs:
            claim = mig_resources.claim_of(container, migs, self._words(HAMI), self._limits)
        else:
            for names, asked in vgpus.values():
                if asked:
                    claim = hami.claim_of(container, asked, names, self._words(names), self._limits)
        chosen = capabilities.chosen_for(container, claim, self._said.capabilities, self._limits)
        if claim is not None:
            claim = msgspec.structs.replace(claim, driver_capabilities=chosen) if chosen else claim
            self._add(claim, next(each for each in spoken if each))

    @staticmethod
    def _check_one_vocabulary(spoken: list[Written]) -> None:
        if len(spoken) > 1:
            why = "these are two vocabularies for one container"
            raise spoken[1].contradicts(spoken[0], why, "one of them")

    def _words(self, names: VgpuNames) -> hami.PodWords:
        words = hami.words_of(self._said.hami, names)
        self.words = words
        return words

    def _add(self, claim: Claim, said: Mapping[str, Written]) -> None:
        self.claims.append(claim)
        field_said = said.get("gpus", said.get("shares", next(iter(said.values()))))
        if self.first_field is None:
            self.first_field = field_said
        many = counting.too_many(self.claims, self._limits.max_gpus_per_node)
        if many is not None:
            why = f"with this container the pod asks for {many.asked} devices on one node"
            raise field_said.wrong(RefusalReason.TOO_LARGE, why, many.allowed)
