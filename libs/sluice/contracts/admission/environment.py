"""Set the environment of a GPU pod's containers, and refuse variables that only Sluice may set.

A list may hold a name twice, and the kubelet takes the last; an entry in `env` overrides those of `envFrom`, which are
not visible here (https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/#environment-variables).
A literal entry equal to the grant is replaced by ours, as the kubelet does for device plugins."""

from collections.abc import Iterator
from typing import Any

from sluice.contracts.admission.config import AdmissionConfig
from sluice.contracts.admission.pod_fields import Container, EnvVar, Spec
from sluice.contracts.admission.violations import Violation, forbidden, invalid
from sluice.contracts.driver_capabilities import CapabilityError, chosen, same
from sluice.contracts.kube import names
from sluice.contracts.messages import Claim
from sluice.contracts.request_syntax.keys import SLUICE, is_gpu_resource
from sluice.contracts.request_syntax.sluice_keys import DRIVER_CAPABILITIES

_NONE = frozenset({names.NO_DEVICES, "none"})
"""Values of NVIDIA_VISIBLE_DEVICES that select no device."""
_CUDA_DEVICES = "CUDA_VISIBLE_DEVICES"
_NAMES = frozenset({_CUDA_DEVICES, names.ENV_TICKET, names.ENV_QUOTA_SOCKET})
_MPS = "CUDA_MPS_"
_ALLOWED = f"leave it out; {names.ENV_VISIBLE_DEVICES} may be {names.NO_DEVICES!r} in a container without a GPU"
_ALLOWED_WITH_GPU = {
    names.ENV_DRIVER_CAPABILITIES: f"a literal value, or the annotation {SLUICE}/{DRIVER_CAPABILITIES}",
    names.ENV_VISIBLE_DEVICES: "leave it out, or 'all', for all devices of the container",
    _CUDA_DEVICES: "leave it out, or indexes of the container's own devices, from 0",
}


def may_share(claim: Claim) -> bool:
    return not {"mps", "fractional"}.isdisjoint(claim.modes)


def field_paths(container: str, claim: Claim | None) -> dict[str, str]:
    """The variables of a container with a GPU, each with the annotation that it is read from."""
    if claim is None:
        return {}
    of_quota = names.ENV_QUOTA if "fractional" in claim.modes else ()
    wanted = (*names.ENV_ALWAYS, *(names.ENV_SHARES if may_share(claim) else ()), *of_quota)
    return {variable: names.granted_field_path(container, key) for variable, key in wanted}


def validate_env(
    path: str,
    container: Container,
    claim: Claim | None,
    config: AdmissionConfig,
    *,
    later: bool = False,
    by_kubelet: bool = False,
) -> Iterator[Violation]:
    """Variables that only Sluice may set. `later`: the request was stored before; `by_kubelet`: with a claim."""
    ours = field_paths(container.name, claim)
    for entry in container.env or ():
        reserved = entry.name.startswith(("NVIDIA_", _MPS)) or entry.name in _NAMES
        if _is_ours(entry, ours) or not (entry.name in ours or (reserved and entry.name not in config.env_allowed)):
            continue
        if _says_what_is_granted(entry, claim):
            if claim is not None and not later:
                yield from _contradictions(path, entry, claim, config)
            continue
        if entry.name == names.ENV_PRELOAD:
            why = "a fractional share preloads the library of its time quota here, and a second entry would replace it"
            right = "preload yours in the image (/etc/ld.so.preload), or use a mode without a time quota"
            yield forbidden(f"{path}.env[{entry.name}]", entry.value or "(from elsewhere)", why, right)
            continue
        field, value = f"{path}.env[{entry.name}]", entry.value if entry.value is not None else "(from elsewhere)"
        if entry.name != names.ENV_VISIBLE_DEVICES or entry.value_from is not None or entry.value not in _NONE:
            allowed = _ALLOWED_WITH_GPU.get(entry.name, _ALLOWED) if claim is not None else _ALLOWED
            yield forbidden(field, value, "Sluice sets this from what the pod is granted", allowed)
        elif claim is not None and not by_kubelet:
            yield invalid(field, value, "the container requests a GPU, and this hides all GPUs", "one of the two")


def replaced_env(
    container: Container, claim: Claim | None, *, by_kubelet: bool = False
) -> Iterator[tuple[int, dict[str, Any]]]:
    """By position, the replacement of entries that equal the grant; the kubelet's own variables override a pod's."""
    ours = field_paths(container.name, claim)
    for at, entry in enumerate(container.env or ()):
        if claim is None or not _is_replaced(entry):
            continue
        if not by_kubelet:
            yield at, {"name": entry.name, "valueFrom": {"fieldRef": {"fieldPath": ours[entry.name]}}}
        elif entry.name == names.ENV_VISIBLE_DEVICES:
            yield at, {"name": entry.name, "value": names.NO_DEVICES}


def missing_env(container: Container, claim: Claim | None, *, by_kubelet: bool = False) -> list[dict[str, Any]]:
    """The entries that a valid container lacks, in the order in which they are put first."""
    present = {entry.name for entry in container.env or ()}
    if claim is None or by_kubelet:
        return (
            []
            if names.ENV_VISIBLE_DEVICES in present
            else [{"name": names.ENV_VISIBLE_DEVICES, "value": names.NO_DEVICES}]
        )
    return [
        {"name": variable, "valueFrom": {"fieldRef": {"fieldPath": field_path}}}
        for variable, field_path in field_paths(container.name, claim).items()
        if variable not in present
    ]


def sees_all_gpus(spec: Spec, container: Container) -> bool:
    """Whether a container of a pod without a request may see every GPU of its node: its image decides.

    A runtime class may be NVIDIA's, and CUDA images set `all`
    (https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html). Devices of
    another plugin or of a ResourceClaim are left alone."""
    others = any(name.startswith("nvidia.com/") and not is_gpu_resource(name) for name in container.asked())
    named = any(entry.name == names.ENV_VISIBLE_DEVICES for entry in container.env or ())
    return bool(spec.runtime_class_name) and not (others or named)


def chooses_devices(entry: EnvVar) -> bool:
    """Whether a variable of the pod selects devices; one read from elsewhere may (policy `sluice-no-side-door`)."""
    if entry.name not in {names.ENV_VISIBLE_DEVICES, _CUDA_DEVICES}:
        return entry.name.startswith(_MPS)
    hides = _NONE if entry.name == names.ENV_VISIBLE_DEVICES else {"", "-1"}
    return entry.value_from is not None or (entry.value or "") not in hides


def _says_what_is_granted(entry: EnvVar, claim: Claim | None) -> bool:
    """Whether a variable of ours, set by hand, is harmless: it adds no device and hides none."""
    if claim is None:
        # Without a device the NVIDIA runtime does nothing, whatever the capabilities.
        return entry.name == names.ENV_DRIVER_CAPABILITIES
    return _is_replaced(entry) or _chooses_among_its_own(entry, claim)


def _is_replaced(entry: EnvVar) -> bool:
    """Whether a literal entry equals the grant: its capabilities are in the request then; or it selects all GPUs."""
    if entry.value_from is not None:
        return False
    return entry.name == names.ENV_DRIVER_CAPABILITIES or (
        entry.name == names.ENV_VISIBLE_DEVICES and entry.value == "all"
    )


def _chooses_among_its_own(entry: EnvVar, claim: Claim) -> bool:
    """Whether CUDA selects among the container's own devices by index: it sees no others."""
    if entry.name != _CUDA_DEVICES or entry.value_from is not None or not entry.value:
        return False
    devices = -(-claim.shares_percent // 100) if claim.shares_percent is not None else claim.gpus
    indexes = entry.value.split(",")
    return all(len(each) <= 2 and each.isascii() and each.isdecimal() and int(each) < devices for each in indexes)


def _contradictions(path: str, entry: EnvVar, claim: Claim, config: AdmissionConfig) -> Iterator[Violation]:
    if entry.name != names.ENV_DRIVER_CAPABILITIES or not entry.value:
        return
    try:
        agrees = same(chosen(entry.value, config.driver_capabilities), claim.driver_capabilities)
    except CapabilityError:
        agrees = False
    if not agrees:
        why = f"the pod's annotations set {claim.driver_capabilities!r} for this container"
        yield invalid(f"{path}.env[{entry.name}]", entry.value, why, "only one of them, or the same in both")


def _is_ours(entry: EnvVar, ours: dict[str, str]) -> bool:
    if entry.value or entry.value_from is None or entry.value_from.field_ref is None:
        return False
    return entry.name in ours and entry.value_from.field_ref.field_path == ours[entry.name]
