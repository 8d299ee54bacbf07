"""What the pod-watcher counts of its source: pods by how far they are, and what the API server answers."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Protocol

from sluice.runtime.prometheus.metrics import Metric, Sample

PODS = Metric(
    "sluice_pods",
    "gauge",
    "Pods by how far they are: asking, waiting (told why), bound, refused, ending (its slice is not given back yet).",
    ("state",),
)
KUBE_REQUESTS = Metric(
    "sluice_kube_requests_total",
    "counter",
    "Requests to the API server by method and HTTP status; 0 is no answer, or one that broke off.",
    ("method", "status"),
)
NO_ANSWER = "0"
KUBE_LISTS = Metric("sluice_kube_lists_total", "counter", "Listings that were begun, by what is listed.", ("what",))
KUBE_WATCHES = Metric(
    "sluice_kube_watches_total",
    "counter",
    "Watches that were begun and answered, by what is watched; while all is well each lasts four minutes at most.",
    ("what",),
)
KUBE_TROUBLES = Metric(
    "sluice_kube_watch_troubles_total",
    "counter",
    "Listings and watches that failed and are tried again, by what was asked for.",
    ("what",),
)

REVIEW_SECONDS = Metric(
    "sluice_admission_review_seconds",
    "histogram",
    "How long the webhook took to judge a pod, once it was read, by its answer: allowed, denied, unreadable.",
    ("answer",),
)
WEBHOOK_READY = Metric(
    "sluice_webhook_ready",
    "gauge",
    "1 where an API server can speak to this webhook, 0 where its certificate forbids it.",
)
CERTIFICATE_ENDS = Metric(
    "sluice_webhook_certificate_ends_time_seconds",
    "gauge",
    "When the certificate ends that the webhook shows, in unix seconds.",
)


class Staged(Protocol):
    """A core that knows how far its pods are."""

    def stages(self) -> Mapping[str, int]:
        """How many pods are at each stage."""


def pods_of(core: Staged) -> Iterator[Sample]:
    """What one core knows, as samples."""
    for state, count in Counter(core.stages()).items():
        yield Sample(PODS, count, (state,))
