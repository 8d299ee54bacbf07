"""The containers of a Pod: their names, their resources as written, the user they run as, one variable."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from sluice.contracts.bus.codec import NOT_READABLE
from sluice.contracts.kube.names import DNS_LABEL, ENV_DRIVER_CAPABILITIES
from sluice.contracts.kube.object_fields import PodFields
from sluice.contracts.kube.quantities import NotANumber, parse_whole
from sluice.contracts.request_syntax.pod_request import ContainerRequest
from sluice.contracts.request_syntax.source_text import Unquoted, is_null, never_raising

DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
ISTIO_STATUS = "sidecar.istio.io/status"
INJECTED = frozenset(
    {
        "istio-proxy",  # istio/istio, manifests/charts/istio-control/istio-discovery/files/injection-template.yaml
        "linkerd-proxy",  # linkerd/linkerd2, charts/partials/templates/_proxy.tpl
        "consul-dataplane",  # hashicorp/consul-k8s, control-plane/connect-inject/webhook
        "envoy-sidecar",  # hashicorp/consul-k8s before 1.0
        "kuma-sidecar",  # kumahq/kuma, pkg/plugins/runtime/k8s/util
        "envoy",  # aws/aws-app-mesh-controller-for-k8s, pkg/inject; openservicemesh/osm
        "xray-daemon",  # the same, with tracing by AWS X-Ray
        "daprd",  # dapr/dapr, pkg/injector
        "vault-agent",  # hashicorp/vault-k8s, agent-inject/agent
        "queue-proxy",  # knative/serving, pkg/reconciler/revision/resources
        "cloud-sql-proxy",  # Google's Cloud SQL Auth Proxy, its examples for Kubernetes
        "cloudsql-proxy",  # the same, in its first version
        "gke-gcsfuse-sidecar",  # GoogleCloudPlatform/gcs-fuse-csi-driver, pkg/webhook
        "azwi-proxy",  # Azure/azure-workload-identity, pkg/webhook
        "otc-container",  # open-telemetry/opentelemetry-operator, internal/naming
        "datadog-agent-injected",  # DataDog/datadog-agent, pkg/clusteragent/admission
    }
)
"""Names of injected containers, with the repository that injects each."""
_STATUS_CHARACTERS_MAX = 64_000


@dataclass(frozen=True, slots=True)
class MainContainer:
    """The main container; empty when the pod has none. `guessed_among` are the candidates when nothing named it."""

    name: str
    guessed_among: tuple[str, ...] = ()


def main_container(annotations: Mapping[str, object], names: Sequence[str]) -> MainContainer:
    """The main one of the app containers of these names, in order."""
    named = annotations.get(DEFAULT_CONTAINER)
    if isinstance(named, str) and named in names:
        return MainContainer(named)
    injected = INJECTED | _istio_containers(annotations.get(ISTIO_STATUS))
    candidates = tuple(name for name in names if name not in injected) or tuple(names)
    if len(candidates) > 1:
        return MainContainer(candidates[0], candidates)
    return MainContainer(candidates[0] if candidates else "")


class _IstioStatus(msgspec.Struct):
    containers: list[str] | None = None


def _istio_containers(status: object) -> frozenset[str]:
    if not isinstance(status, str) or len(status) > _STATUS_CHARACTERS_MAX:
        return frozenset()
    try:
        found = msgspec.json.decode(status, type=_IstioStatus)
    except (*NOT_READABLE, UnicodeEncodeError):
        return frozenset()
    return frozenset(found.containers or ())


UID_MAX = 2**31 - 1
_UID_ALLOWED = f"a whole number from 0 to {UID_MAX}, without quotes"
_NAME = re.compile(DNS_LABEL)


@never_raising
def read_containers(spec: object) -> tuple[ContainerRequest, ...]:
    """The containers of a Pod's `spec`, in order; or what is wrong with them. Never raises."""
    pod = PodFields.of("spec", spec)
    if not isinstance(listed := pod.values.get("containers"), list) or not listed:
        raise pod.wrong("containers", "a pod needs a container", "a list of containers")
    pod_uid = _uid(pod)
    found: dict[str, ContainerRequest] = {}
    for each in pod.listed("containers"):
        name = each.values.get("name")
        if not isinstance(name, str) or _NAME.fullmatch(name) is None:
            raise each.wrong("name", "not a valid container name", "at most 63 of a-z, 0-9 and '-'")
        if name in found:
            raise each.wrong("name", "two containers have this name", "a unique name")
        limits, requests = _resources(each)
        uid = _uid(each)
        variable = literal_variable(each.values, ENV_DRIVER_CAPABILITIES)
        found[name] = ContainerRequest(name, limits, requests, uid if uid is not None else pod_uid, variable)
    for each in pod.listed("initContainers"):
        _resources(each)
    return tuple(found.values())


def _resources(container: PodFields) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    resources = container.inside("resources")
    return resources.inside("limits").values, resources.inside("requests").values


def literal_variable(container: Mapping[str, Any], name: str) -> str:
    """The literal value of a container's own variable; of several the last, as in the kubelet."""
    env = container.get("env")
    listed = [each for each in env if isinstance(each, dict)] if isinstance(env, list) else []
    values = [each.get("value") for each in listed if each.get("name") == name]
    last = values[-1] if values else ""
    return last if isinstance(last, str) else ""


def _uid(holder: PodFields) -> int | None:
    written = holder.inside("securityContext").at("runAsUser")
    value = written.raw
    if is_null(value):
        return None
    if isinstance(value, bool) or not isinstance(value, int | Unquoted):
        raise written.invalid("no number", _UID_ALLOWED)
    uid = parse_whole(value.text) if isinstance(value, Unquoted) else value
    if isinstance(uid, NotANumber):
        raise written.invalid(uid.why, _UID_ALLOWED)
    if not 0 <= uid <= UID_MAX:
        raise written.out_of_range("out of range", _UID_ALLOWED)
    return uid
