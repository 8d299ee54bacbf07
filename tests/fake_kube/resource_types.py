"""The resources served, and how a path and a method become a `Target` for authorisation and verbs. Pure."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from fake_kube.errors import Json

NAMES = frozenset({"metadata.name", "metadata.namespace"})


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind of object."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    status: bool = False
    """It has a status of its own that only /status writes."""
    fields: frozenset[str] = NAMES
    """What it can be selected by."""
    custom: bool = False
    """From a CustomResourceDefinition: no strategic merge."""
    columns: tuple[Json, ...] = field(default=(), compare=False)
    """Of a custom resource: what `kubectl get` prints of it."""
    stored_as: str = ""
    """Another resource that is the same objects by other names: core events are those of events.k8s.io."""
    show: Callable[[Json], Json] | None = field(default=None, compare=False)

    @property
    def full_name(self) -> str:
        """As messages print it: `gpus.sluice.dev`, `pods`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def full_kind(self) -> str:
        """As messages about validation print it: `Event.events.k8s.io`, `Pod`."""
        return f"{self.kind}.{self.group}" if self.group else self.kind

    @property
    def storage(self) -> str:
        return self.stored_as or self.full_name

    @property
    def api_version(self) -> str:
        """`v1`, `policy/v1`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def shown(self, obj: Json) -> Json:
        """An object as this resource words it."""
        return self.show(obj) if self.show else obj


@dataclass(frozen=True, slots=True)
class Target:
    """What a request is about."""

    resource: Resource
    verb: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def path(self) -> str:
        """`pods/status`, as Roles write it."""
        return f"{self.resource.plural}/{self.subresource}" if self.subresource else self.resource.plural


POD_FIELDS = NAMES | {
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "spec.hostNetwork",
    "status.phase",
    "status.podIP",
    "status.nominatedNodeName",
}
_REGARDING = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
EVENT_FIELDS = NAMES | {"reason", "type", "reportingController"} | {f"regarding.{each}" for each in _REGARDING}
CORE_EVENT_FIELDS = NAMES | {"reason", "type", "reportingComponent"} | {f"involvedObject.{each}" for each in _REGARDING}

POD_SUBRESOURCES = ("status", "binding", "eviction", "ephemeralcontainers")
RBAC = "rbac.authorization.k8s.io"
BUILT_IN = (
    Resource("", "v1", "pods", "Pod", status=True, fields=POD_FIELDS),
    Resource("", "v1", "nodes", "Node", namespaced=False, status=True, fields=NAMES | {"spec.unschedulable"}),
    Resource("", "v1", "namespaces", "Namespace", namespaced=False, status=True, fields=NAMES | {"status.phase"}),
    Resource("", "v1", "secrets", "Secret", fields=NAMES | {"type"}),
    Resource("", "v1", "configmaps", "ConfigMap"),
    Resource("", "v1", "serviceaccounts", "ServiceAccount"),
    Resource("", "v1", "resourcequotas", "ResourceQuota", status=True),
    Resource("", "v1", "limitranges", "LimitRange"),
    Resource("events.k8s.io", "v1", "events", "Event", fields=EVENT_FIELDS),
    Resource("coordination.k8s.io", "v1", "leases", "Lease"),
    Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", status=True),
    Resource("apps", "v1", "deployments", "Deployment", status=True),
    # Stored and shown, without further effect.
    Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", status=True),
    Resource("", "v1", "persistentvolumes", "PersistentVolume", namespaced=False, status=True),
    Resource("storage.k8s.io", "v1", "storageclasses", "StorageClass", namespaced=False),
    Resource("apps", "v1", "daemonsets", "DaemonSet", status=True),
    Resource("apps", "v1", "statefulsets", "StatefulSet", status=True),
    Resource("batch", "v1", "jobs", "Job", status=True),
    Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy"),
    Resource("", "v1", "services", "Service", status=True),
    Resource("storage.k8s.io", "v1", "csidrivers", "CSIDriver", namespaced=False),
    Resource("storage.k8s.io", "v1", "csinodes", "CSINode", namespaced=False),
    Resource("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", namespaced=False),
    Resource("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", status=True),
    Resource("resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate"),
    Resource("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", namespaced=False),
    Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False),
    *(
        Resource(
            "admissionregistration.k8s.io",
            "v1",
            f"{kind.lower()}{'s' if kind[-1] != 'y' else ''}",
            kind,
            namespaced=False,
        )
        for kind in ("MutatingWebhookConfiguration", "ValidatingAdmissionPolicyBinding")
    ),
    Resource(
        "admissionregistration.k8s.io",
        "v1",
        "validatingadmissionpolicies",
        "ValidatingAdmissionPolicy",
        namespaced=False,
    ),
    Resource(
        "apiextensions.k8s.io",
        "v1",
        "customresourcedefinitions",
        "CustomResourceDefinition",
        namespaced=False,
        status=True,
    ),
    Resource(RBAC, "v1", "roles", "Role"),
    Resource(RBAC, "v1", "rolebindings", "RoleBinding"),
    Resource(RBAC, "v1", "clusterroles", "ClusterRole", namespaced=False),
    Resource(RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False),
)


def from_definition(obj: Json) -> Resource:
    spec = obj["spec"]
    served = next(version for version in spec["versions"] if version.get("served", True))
    return Resource(
        spec["group"],
        served["name"],
        spec["names"]["plural"],
        spec["names"]["kind"],
        namespaced=spec["scope"] == "Namespaced",
        status="status" in (served.get("subresources") or {}),
        custom=True,
        columns=tuple(served.get("additionalPrinterColumns") or ()),
    )


VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


def parse(path: str, method: str, *, watch: bool, resources: Iterable[Resource]) -> Target | None:
    """What a URL path means, or None where nothing is served."""
    steps = [step for step in path.split("/") if step]
    if len(steps) >= 3 and steps[0] == "api":
        steps.insert(1, "")
    if len(steps) < 4 or steps[0] not in {"api", "apis"}:
        return None
    group, version, rest = steps[1], steps[2], steps[3:]
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in {"status", "finalize"}:
        namespace, rest = rest[1], rest[2:]
    if len(rest) > 3:
        return None
    plural, name, subresource = (*rest, "", "")[:3]
    for resource in resources:
        if (resource.group, resource.version, resource.plural) == (group, version, plural):
            break
    else:
        return None
    if namespace and not resource.namespaced:
        return None
    return Target(resource, _verb(method, name, watch=watch and not subresource), namespace, name, subresource)


def _verb(method: str, name: str, *, watch: bool) -> str:
    verb = VERBS.get(method, "")
    if verb == "get" and watch:
        return "watch"
    if name:
        return verb
    return {"get": "list", "delete": "deletecollection"}.get(verb, verb)
