"""
Find the main container of a pod, to which annotations without a container's name apply.

Webhooks of service meshes and agents add containers, some at the front. So the position counts only without better
evidence: `kubectl.kubernetes.io/default-container` (https://kubernetes.io/docs/reference/labels-annotations-taints/),
the list that Istio writes of what it injected (`sidecar.istio.io/status`), and the names of proxies and agents that are
always injected under one name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from sluice.contracts.bus.codec import NOT_READABLE

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
    """The containers that Istio lists as injected; none when that cannot be parsed."""
    if not isinstance(status, str) or len(status) > _STATUS_CHARACTERS_MAX:
        return frozenset()
    try:
        found = msgspec.json.decode(status, type=_IstioStatus)
    except (*NOT_READABLE, UnicodeEncodeError):
        return frozenset()
    return frozenset(found.containers or ())
