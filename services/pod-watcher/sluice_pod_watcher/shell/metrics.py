"""Metrics of the pod-watcher: pods by phase, and answers of the API server."""

from collections.abc import Iterator, Mapping

from sluice.runtime.prometheus.metrics import Metric, Sample

PODS = Metric(
    "sluice_pods",
    "gauge",
    "Pods by state: asking, waiting, bound, refused, ending (its slice is not released yet).",
    ("state",),
)
KUBE_REQUESTS = Metric(
    "sluice_kube_requests_total",
    "counter",
    "Requests to the API server by method and HTTP status; 0 is no answer.",
    ("method", "status"),
)
NO_ANSWER = "0"
KUBE_LISTS = Metric("sluice_kube_lists_total", "counter", "List calls, by resource.", ("what",))
KUBE_WATCHES = Metric(
    "sluice_kube_watches_total",
    "counter",
    "Watches established, by resource; each lasts four minutes at most.",
    ("what",),
)
KUBE_TROUBLES = Metric(
    "sluice_kube_watch_troubles_total", "counter", "Failed lists and watches, by resource; they are retried.", ("what",)
)

REVIEW_SECONDS = Metric(
    "sluice_admission_review_seconds",
    "histogram",
    "Time to review a pod, by answer: allowed, denied, unreadable.",
    ("answer",),
)
WEBHOOK_READY = Metric(
    "sluice_webhook_ready", "gauge", "1 if the webhook's certificate lets API servers connect, else 0."
)
CERTIFICATE_ENDS = Metric(
    "sluice_webhook_certificate_ends_time_seconds", "gauge", "Expiry of the webhook's certificate, unix seconds."
)
BUS_LOGINS = Metric(
    "sluice_bus_logins_total",
    "counter",
    "Logins at the broker by result: admitted, refused, unanswered (the API server was silent), dropped (too many).",
    ("result",),
)


def pods_of(phases: Mapping[str, int]) -> Iterator[Sample]:
    """The number of pods in each phase."""
    for state, count in phases.items():
        yield Sample(PODS, count, (state,))
