"""The containers of a Pod: their names, their resources as they were written, and the user they run as."""

import re
from collections.abc import Mapping
from typing import Any

from sluice.contracts.asking.keys import is_gpu_resource
from sluice.contracts.asking.pods import ContainerAsk
from sluice.contracts.asking.written import AskError, Unquoted, Written
from sluice.contracts.pod_specs import shapes
from sluice.contracts.quantities import NotANumber, parse_whole
from sluice.contracts.refusals import Refusal, RefusalReason

UID_MAX = 2**31 - 1
"""The largest `runAsUser` that Kubernetes takes."""
_UID_ALLOWED = f"a whole number from 0 to {UID_MAX}, without quotes"
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")


def read_containers(spec: object) -> tuple[ContainerAsk, ...] | Refusal:
    """The containers of a Pod's `spec`, in their order; or what is wrong with them. Never raises."""
    try:
        return _containers(shapes.mapping(spec, "spec"))
    except AskError as error:
        return error.refusal


def _containers(spec: Mapping[str, Any]) -> tuple[ContainerAsk, ...]:
    listed = spec.get("containers")
    if not isinstance(listed, list) or not listed:
        raise shapes.wrong("spec.containers", listed, "a pod needs a container", "a list of containers")
    pod_uid = _uid(spec, "spec")
    found: dict[str, ContainerAsk] = {}
    for at, each in enumerate(shapes.sequence(listed, "spec.containers")):
        path = f"spec.containers[{at}]"
        name = each.get("name") if isinstance(each, dict) else None
        if not isinstance(name, str) or _NAME.fullmatch(name) is None:
            raise shapes.wrong(f"{path}.name", name, "no name of a container", "at most 63 of a-z, 0-9 and '-'")
        if name in found:
            raise shapes.wrong(f"{path}.name", name, "two containers have this name", "a name of its own")
        found[name] = _container(each, name, path, pod_uid)
    _check_init_containers(spec)
    return tuple(found.values())


def _container(written: Mapping[str, Any], name: str, path: str, pod_uid: int | None) -> ContainerAsk:
    resources = shapes.mapping(written.get("resources"), f"{path}.resources")
    uid = _uid(written, path)
    return ContainerAsk(
        name=name,
        limits=shapes.mapping(resources.get("limits"), f"{path}.resources.limits"),
        requests=shapes.mapping(resources.get("requests"), f"{path}.resources.requests"),
        uid=uid if uid is not None else pod_uid,
    )


def _uid(holder: Mapping[str, Any], path: str) -> int | None:
    context = shapes.mapping(holder.get("securityContext"), f"{path}.securityContext")
    value, path = context.get("runAsUser"), f"{path}.securityContext.runAsUser"
    if shapes.is_null(value):
        return None
    if isinstance(value, bool) or not isinstance(value, int | Unquoted):
        raise shapes.wrong(path, value, "no number", _UID_ALLOWED)
    uid = parse_whole(value.text) if isinstance(value, Unquoted) else value
    if isinstance(uid, NotANumber):
        raise shapes.wrong(path, value, uid.why, _UID_ALLOWED)
    if not 0 <= uid <= UID_MAX:
        raise Written(path, value).wrong(RefusalReason.OUT_OF_RANGE, "out of range", _UID_ALLOWED)
    return uid


def _check_init_containers(spec: Mapping[str, Any]) -> None:
    """What an init container asks of GPUs would be passed over, so it is refused."""
    for at, each in enumerate(shapes.sequence(spec.get("initContainers"), "spec.initContainers")):
        path = f"spec.initContainers[{at}]"
        resources = shapes.mapping(shapes.mapping(each, path).get("resources"), f"{path}.resources")
        for part in ("limits", "requests"):
            for name, value in shapes.mapping(resources.get(part), f"{path}.resources.{part}").items():
                if is_gpu_resource(name):
                    why = "an init container is given no GPU of its own in this version"
                    field = f"{path}.resources.{part}.{name}"
                    raise Written(field, value).wrong(RefusalReason.UNSUPPORTED_KEY, why, "GPUs in app containers only")
