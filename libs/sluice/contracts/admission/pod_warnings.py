"""Warnings about a pod that is accepted: keys that have no effect here, defaults that were used."""

from collections.abc import Iterator

from sluice.contracts.admission.environment import chooses_devices, replaced_env, sees_all_gpus
from sluice.contracts.admission.pod_fields import Pod
from sluice.contracts.admission.stored_request import ResolvedRequest, StoredRequest, applies_to_main_container
from sluice.contracts.kube.names import ENV_VISIBLE_DEVICES, NO_DEVICES
from sluice.contracts.kube.quantities import suspicious_memory
from sluice.contracts.pod_specs import main_container
from sluice.contracts.pod_specs.containers import DEFAULT_CONTAINER
from sluice.contracts.reasons import shorten
from sluice.contracts.request_syntax import hami, is_gpu_resource
from sluice.contracts.request_syntax.keys import HAMI, SLUICE
from sluice.contracts.request_syntax.sluice_keys import MODES
from sluice.contracts.request_syntax.source_text import source_text_of

_NAMED_MAX = 5
_SCHEDULERS = {
    "hami-scheduler": "that scheduler starts the pod, so it must be running",
    "slurm-bridge-scheduler": "Slurm would choose a node and count its GPUs, too, independently of Sluice: leave "
    "schedulerName out, or leave the pod to Slurm with the label sluice.dev/ignore",
}
"""By the names that their own admission writes: HAMi's webhook (https://github.com/Project-HAMi/HAMi,
charts/hami/values.yaml), and Slinky's on the pods of its namespaces (https://github.com/SlinkyProject/slurm-bridge)."""


def new_pod_warnings(pod: Pod, before: StoredRequest, stored: StoredRequest, asked: ResolvedRequest) -> Iterator[str]:
    """Warnings about a new pod; `before` is its request without defaults."""
    if any(HAMI.priority in amounts for amounts in stored.resources.values()):
        yield f"Sluice does not use {HAMI.priority}: the annotation sluice.dev/priority orders waiting pods"
    if hami.WEIGHTS in stored.annotations:
        yield f"Sluice does not use {hami.WEIGHTS}: the pool's weights apply"
    for key, value in before.annotations.items():
        if key.endswith("sluice.dev/mode") and "fastpod" in value:
            yield f"{key} = {shorten(value, 40)!r}: fastpod is now called {MODES['fastpod']}; use that name"
        if key.endswith("sluice.dev/memory") and (doubt := suspicious_memory(value)):
            yield f"{key}: {doubt}"
    yield from _on_main_container(pod, before)
    if pod.spec.resource_claims:
        why = "Dynamic Resource Allocation gives the pod further devices, which Sluice does not see"
        yield f"spec.resourceClaims: {why}; use one of the two"
    yield from _on_scheduler(pod)
    for key, value in stored.annotations.items():
        if key not in before.annotations:
            yield f"{key} = {value!r}: the default of this namespace, because the pod names no mode"
    yield from _replaced(pod, asked)
    yield from _passed_over(pod, stored)


def _on_scheduler(pod: Pod) -> Iterator[str]:
    name = pod.spec.scheduler_name
    if name in _SCHEDULERS:
        yield f"spec.schedulerName = {name!r}: {_SCHEDULERS[name]}"


def _on_main_container(pod: Pod, stored: StoredRequest) -> Iterator[str]:
    """Keys without a container's name apply to the main one, which may be a guess."""
    key = next((key for key in stored.annotations if applies_to_main_container(key)), None)
    names = [each.name for each in pod.spec.containers or ()]
    main = main_container(pod.metadata.annotations or {}, names)
    if key is not None and main.guessed_among:
        others = ", ".join(main.guessed_among[1:])
        better = f"use {main.name}.{key}" if key.startswith(f"{SLUICE}/") else f"set {DEFAULT_CONTAINER}"
        yield shorten(f"{key} applies to container {main.name}, the first one, and not to {others}: {better}", 240)


def no_request_warnings(pod: Pod, *, is_sent: bool = True) -> tuple[str, ...]:
    """Warnings about a pod without a request that would see all GPUs: by its images (if `is_sent`) or a variable."""
    listed = (*(pod.spec.containers or ()), *(pod.spec.init_containers or ()))
    hidden = [each.name for each in listed if is_sent and sees_all_gpus(pod.spec, each)]
    found = []
    if hidden:
        names = f"{', '.join(shorten(name, 63) for name in hidden[:_NAMED_MAX])}{' ...' if hidden[_NAMED_MAX:] else ''}"
        whose = "its containers get" if len(hidden) == len(listed) else f"container {names} gets"
        what = f"the pod requests no GPU, so {whose} none ({ENV_VISIBLE_DEVICES}={NO_DEVICES})"
        found = [f"spec.runtimeClassName = {pod.spec.runtime_class_name!r}: {what}"]
    by_hand = [(each.name, env) for each in listed for env in each.env or () if chooses_devices(env)]
    for name, env in by_hand[:_NAMED_MAX]:
        value = "(from elsewhere)" if env.value_from is not None else env.value or ""
        what = f"container {shorten(name, 63)}: {shorten(env.name, 63)} = {shorten(value, 40)!r}"
        why = "the pod requests no GPU, and a policy of Sluice refuses devices selected by hand"
        found.append(f"{what}: {why}; request what it needs")
    return tuple(found)


def reviewed_pod_warnings(pod: Pod, asked: ResolvedRequest) -> Iterator[str]:
    for container in (*(pod.spec.containers or ()), *(pod.spec.init_containers or ())):
        found = next((name for name in container.asked() if is_gpu_resource(name)), None)
        if found is not None and asked.claim_for(container.name) is None:
            where = f"container {shorten(container.name, 63)}"
            yield f"{where}: {found} was added after the pod's request was stored, and is removed: it gets no GPU"
    yield from _on_scheduler(pod)
    yield from _replaced(pod, asked)


def _replaced(pod: Pod, asked: ResolvedRequest) -> Iterator[str]:
    for container in (*(pod.spec.containers or ()), *(pod.spec.init_containers or ())):
        claim, env = asked.claim_for(container.name), container.env or []
        for entry in (env[at] for at, _ in replaced_env(container, claim)):
            said, name = claim.driver_capabilities if claim is not None else "", shorten(container.name, 63)
            if entry.name == ENV_VISIBLE_DEVICES:
                yield f"container {name}: {entry.name} = 'all' is replaced by the container's own devices"
            elif entry.value and not said:
                yield f"container {name}: {entry.name} was added after the pod's request was stored, and is replaced"
            elif entry.value and entry.value != said:
                yield f"container {name}: {entry.name} = {shorten(entry.value, 60)!r} becomes {said!r}"


def _passed_over(pod: Pod, stored: StoredRequest) -> Iterator[str]:
    """Defaults of a LimitRange that have no effect beside the pod's own request."""
    for container in (*(pod.spec.containers or ()), *(pod.spec.init_containers or ())):
        for name, amount in container.asked().items():
            if is_gpu_resource(name) and name not in stored.resources.get(container.name, {}):
                default = f"{name} = {shorten(source_text_of(amount), 20)!r}"
                yield f"container {shorten(container.name, 63)}: {default} of a LimitRange is ignored"
