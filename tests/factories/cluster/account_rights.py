"""Which rights each service's account has in a cluster: one table for what is rendered and for what is really asked."""

from dataclasses import dataclass

EVERYWHERE = ""
"""As a namespace: a right in all of them, and on what has none."""
CLAIMS = "resource.k8s.io"
ADMISSION = "admissionregistration.k8s.io"

KEPT = (
    "sluice-bus-keys",
    "sluice-nats-keys",
    "sluice-grpc-authority",
    *(f"sluice-grpc-{each}" for each in ("allocator", "inventory", "console", "operator", "web")),
)
"""Secrets that the callout fills."""


@dataclass(frozen=True, order=True)
class Right:
    """One verb on one resource; a name where the right is limited to it."""

    verb: str
    resource: str
    group: str = ""
    name: str = ""
    namespace: str = EVERYWHERE


NEEDED = {
    "pod-watcher": {
        Right("list", "pods"),
        Right("watch", "pods"),
        Right("patch", "pods"),
        Right("patch", "pods/status"),
        Right("create", "pods/eviction"),
        Right("list", "nodes"),
        Right("watch", "nodes"),
        Right("get", "persistentvolumeclaims"),
        Right("get", "persistentvolumes"),
        Right("get", "storageclasses", "storage.k8s.io"),
        Right("create", "events", "events.k8s.io"),
        Right("patch", "events", "events.k8s.io"),
        Right("list", "resourceclaims", CLAIMS),
        Right("watch", "resourceclaims", CLAIMS),
        Right("list", "deviceclasses", CLAIMS),
        Right("watch", "deviceclasses", CLAIMS),
        Right("create", "resourceclaims", CLAIMS),
        Right("patch", "resourceclaims", CLAIMS),
        Right("patch", "resourceclaims/status", CLAIMS),
        Right("patch", "resourceclaims/binding", CLAIMS),
        Right("patch", "configmaps", "", "sluice-hand-over", "sluice-system"),
        Right("list", "gpus", "sluice.dev"),
        Right("create", "gpus", "sluice.dev"),
        Right("delete", "gpus", "sluice.dev"),
        Right("patch", "gpus/status", "sluice.dev"),
        Right("bind", "slices", "sluice.dev"),
    },
    "callout": {
        Right("create", "tokenreviews", "authentication.k8s.io"),
        *(Right(verb, "secrets", "", name, "sluice-system") for verb in ("get", "patch") for name in KEPT),
        *(
            Right(verb, "configmaps", "", name, space)
            for verb in ("get", "patch")
            for name in ("sluice-bus-authorities", "sluice-grpc-ca")
            for space in ("sluice-system", "sluice-nodes")
        ),
        Right("get", "statefulsets", "apps", "sluice-nats", "sluice-system"),
        Right("patch", "statefulsets", "apps", "sluice-nats", "sluice-system"),
    },
    "webhook": {
        Right("get", "mutatingwebhookconfigurations", ADMISSION, "sluice"),
        Right("patch", "mutatingwebhookconfigurations", ADMISSION, "sluice"),
        Right("get", "secrets", "", "sluice-webhook-tls", "sluice-system"),
        Right("patch", "secrets", "", "sluice-webhook-tls", "sluice-system"),
    },
}
"""By account; the others have none."""
PLACEHOLDERS = {Right(verb, "pods", "", "", "sluice-system") for verb in ("create", "delete")}
"""More of the pod-watcher, with the component `autoscaling`."""
