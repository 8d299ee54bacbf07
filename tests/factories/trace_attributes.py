"""Every attribute that may leave a process in a span: names, ids and places."""

KEYS = frozenset(
    {
        "error.type",
        "hw.id",
        "hw.type",
        "k8s.namespace.name",
        "k8s.node.name",
        "k8s.pod.name",
        "k8s.pod.uid",
        "messaging.destination.name",
        "messaging.destination.template",
        "messaging.message.id",
        "messaging.operation.name",
        "messaging.operation.type",
        "messaging.system",
        "rpc.method",
        "rpc.system.name",
        "sluice.allocation",
        "sluice.attempt",
        "sluice.decided",
        "sluice.delivered_again",
        "sluice.event",
        "sluice.reason",
        "sluice.request",
        "sluice.revision",
        "sluice.waited_here_ms",
    }
)
