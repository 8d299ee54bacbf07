"""What a person should know about a pod that is taken as it is: keys that say nothing here, defaults that were used."""

from collections.abc import Iterator

from sluice.contracts.admission.asks import Asked, StoredAsk
from sluice.contracts.admission.shapes import Pod
from sluice.contracts.asking import hami, is_gpu_resource
from sluice.contracts.asking.keys import HAMI
from sluice.contracts.asking.sluice_keys import MODES
from sluice.contracts.refusals import shorten

HAMI_SCHEDULER = "hami-scheduler"
"""The name that HAMi's own webhook writes (https://github.com/Project-HAMi/HAMi, charts/hami/values.yaml)."""


def on_first(pod: Pod, before: StoredAsk, stored: StoredAsk) -> Iterator[str]:
    """Of a pod that is new; `before` is its ask without defaults."""
    if any(HAMI.priority in amounts for amounts in stored.resources.values()):
        yield f"{HAMI.priority} is not used by Sluice: who waits goes first by the annotation sluice.dev/priority"
    if hami.WEIGHTS in stored.annotations:
        yield f"{hami.WEIGHTS} is not used by Sluice: the weights of the pool count"
    for key, value in before.annotations.items():
        if key.endswith("sluice.dev/mode") and "fastpod" in value:
            yield f"{key} = {shorten(value, 40)!r}: fastpod is now called {MODES['fastpod']}, and means the same"
    if pod.spec.scheduler_name == HAMI_SCHEDULER:
        yield f"spec.schedulerName = {HAMI_SCHEDULER!r}: the pod is started by that scheduler, which must be running"
    for key, value in stored.annotations.items():
        if key not in before.annotations:
            yield f"{key} = {value!r}: the default of this namespace, for the pod names no mode"


def on_later(pod: Pod, asked: Asked) -> Iterator[str]:
    """Of a pod whose ask was stored before: what was added since is not served."""
    for container in (*(pod.spec.containers or ()), *(pod.spec.init_containers or ())):
        limits, requests = container.amounts()
        found = next((name for name in (*limits, *requests) if is_gpu_resource(name)), None)
        if found is not None and asked.claim_for(container.name) is None:
            where = f"container {shorten(container.name, 63)}"
            yield f"{where}: {found} was added after the pod's ask was stored, and is taken out: it gets no GPU"
