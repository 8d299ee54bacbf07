"""Which rights each service's account has in a cluster: one table for what is rendered and for what is really asked."""

from dataclasses import dataclass

from factories.cluster.kubernetes import Cluster

EVERYWHERE = ""
"""As a namespace: a right in all of them, and on what has none."""
CLAIMS = "resource.k8s.io"
ADMISSION = "admissionregistration.k8s.io"

CLIENTS = ("authority", "allocator", "inventory", "console", "operator", "web")
KEPT = ("sluice-bus-keys", "sluice-nats-keys", *(f"sluice-grpc-{each}" for each in CLIENTS))
"""Secrets that the callout fills."""


@dataclass(frozen=True, order=True)
class Right:
    """One verb on one resource; a name where the right is limited to it."""

    verb: str
    resource: str
    group: str = ""
    name: str = ""
    namespace: str = EVERYWHERE


def rights(verbs: str, resource: str, group: str = "", name: str = "", namespace: str = EVERYWHERE) -> set[Right]:
    return {Right(verb, resource, group, name, namespace) for verb in verbs.split()}


NEEDED = {
    "pod-watcher": rights("list watch patch", "pods")
    | rights("patch", "pods/status")
    | rights("create", "pods/eviction")
    | rights("list watch", "nodes")
    | rights("get", "persistentvolumeclaims")
    | rights("get", "persistentvolumes")
    | rights("get", "storageclasses", "storage.k8s.io")
    | rights("create patch", "events", "events.k8s.io")
    | rights("list watch create patch", "resourceclaims", CLAIMS)
    | rights("list watch", "deviceclasses", CLAIMS)
    | rights("patch", "resourceclaims/status", CLAIMS)
    | rights("patch", "resourceclaims/binding", CLAIMS)
    | rights("patch", "configmaps", "", "sluice-hand-over", "sluice-system")
    | rights("list create delete", "gpus", "sluice.dev")
    | rights("patch", "gpus/status", "sluice.dev")
    | rights("bind", "slices", "sluice.dev"),
    "callout": rights("create", "tokenreviews", "authentication.k8s.io")
    | rights("get patch", "statefulsets", "apps", "sluice-nats", "sluice-system")
    | {right for name in KEPT for right in rights("get patch", "secrets", "", name, "sluice-system")}
    | {
        right
        for name in ("sluice-bus-authorities", "sluice-grpc-ca")
        for space in ("sluice-system", "sluice-nodes")
        for right in rights("get patch", "configmaps", "", name, space)
    },
    "webhook": rights("get patch", "mutatingwebhookconfigurations", ADMISSION, "sluice")
    | rights("get patch", "secrets", "", "sluice-webhook-tls", "sluice-system"),
}
"""By account; the others have none."""
PLACEHOLDERS = rights("create delete", "pods", "", "", "sluice-system")
"""More of the pod-watcher, with the component `autoscaling`."""


async def may(kube: Cluster, token: str, right: Right) -> bool:
    """What the API server answers to the owner of a token."""
    plural, _, subresource = right.resource.partition("/")
    where = {"name": right.name, "namespace": right.namespace}
    asked = {"verb": right.verb, "group": right.group, "resource": plural, "subresource": subresource, **where}
    path, kind = "/apis/authorization.k8s.io/v1", "SelfSubjectAccessReview"
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": {"resourceAttributes": asked}}
    reply = await kube.ask("POST", f"{path}/{kind.lower()}s", body, token=token)
    assert reply.code == 201, reply
    return bool(reply.body["status"]["allowed"])
