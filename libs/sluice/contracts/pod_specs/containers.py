"""The containers of a Pod: their names, their resources as written, the user they run as, one variable."""

import re
from collections.abc import Mapping
from typing import Any

from sluice.contracts.kube.names import ENV_DRIVER_CAPABILITIES
from sluice.contracts.kube.quantities import NotANumber, parse_whole
from sluice.contracts.pod_specs import field_types
from sluice.contracts.reasons import Refusal, RefusalReason
from sluice.contracts.request_syntax.pod_request import ContainerRequest
from sluice.contracts.request_syntax.source_text import RequestSyntaxError, SourceValue, Unquoted, is_null

UID_MAX = 2**31 - 1
"""The largest `runAsUser` that Kubernetes accepts."""
_UID_ALLOWED = f"a whole number from 0 to {UID_MAX}, without quotes"
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")


def read_containers(spec: object) -> tuple[ContainerRequest, ...] | Refusal:
    """The containers of a Pod's `spec`, in order; or what is wrong with them. Never raises."""
    try:
        return _containers(field_types.mapping(spec, "spec"))
    except RequestSyntaxError as error:
        return error.refusal


def _containers(spec: Mapping[str, Any]) -> tuple[ContainerRequest, ...]:
    listed = spec.get("containers")
    if not isinstance(listed, list) or not listed:
        raise field_types.wrong("spec.containers", listed, "a pod needs a container", "a list of containers")
    pod_uid = _uid(spec, "spec")
    found: dict[str, ContainerRequest] = {}
    for at, each in enumerate(field_types.sequence(listed, "spec.containers")):
        path = f"spec.containers[{at}]"
        name = each.get("name") if isinstance(each, dict) else None
        if not isinstance(name, str) or _NAME.fullmatch(name) is None:
            raise field_types.wrong(
                f"{path}.name", name, "not a valid container name", "at most 63 of a-z, 0-9 and '-'"
            )
        if name in found:
            raise field_types.wrong(f"{path}.name", name, "two containers have this name", "a unique name")
        found[name] = _container(each, name, path, pod_uid)
    for at, each in enumerate(field_types.sequence(spec.get("initContainers"), "spec.initContainers")):
        _resources(field_types.mapping(each, f"spec.initContainers[{at}]"), f"spec.initContainers[{at}]")
    return tuple(found.values())


def _container(written: Mapping[str, Any], name: str, path: str, pod_uid: int | None) -> ContainerRequest:
    limits, requests = _resources(written, path)
    uid = _uid(written, path)
    return ContainerRequest(
        name=name,
        limits=limits,
        requests=requests,
        uid=uid if uid is not None else pod_uid,
        driver_capabilities=literal_variable(written, ENV_DRIVER_CAPABILITIES),
    )


def _resources(written: Mapping[str, Any], path: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Limits and requests."""
    resources = field_types.mapping(written.get("resources"), f"{path}.resources")
    limits = field_types.mapping(resources.get("limits"), f"{path}.resources.limits")
    return limits, field_types.mapping(resources.get("requests"), f"{path}.resources.requests")


def literal_variable(container: Mapping[str, Any], name: str) -> str:
    """The literal value of a container's own variable; of several the last, as in the kubelet."""
    env = container.get("env")
    listed = [each for each in env if isinstance(each, dict)] if isinstance(env, list) else []
    values = [each.get("value") for each in listed if each.get("name") == name]
    last = values[-1] if values else ""
    return last if isinstance(last, str) else ""


def _uid(holder: Mapping[str, Any], path: str) -> int | None:
    context = field_types.mapping(holder.get("securityContext"), f"{path}.securityContext")
    value, path = context.get("runAsUser"), f"{path}.securityContext.runAsUser"
    if is_null(value):
        return None
    if isinstance(value, bool) or not isinstance(value, int | Unquoted):
        raise field_types.wrong(path, value, "no number", _UID_ALLOWED)
    uid = parse_whole(value.text) if isinstance(value, Unquoted) else value
    if isinstance(uid, NotANumber):
        raise field_types.wrong(path, value, uid.why, _UID_ALLOWED)
    if not 0 <= uid <= UID_MAX:
        raise SourceValue(path, value).wrong(RefusalReason.OUT_OF_RANGE, "out of range", _UID_ALLOWED)
    return uid
