"""Values set by a limits file (docs/quotas.md), which the console does not change."""

from sluice.contracts.messages import AnyMessage, Cordoned, QuotaSet


def why_of_a_file(last: AnyMessage | None) -> str:
    """Why the last value cannot be changed here, and where it is set; empty if set by hand, or never."""
    match last:
        case QuotaSet() if last.source:
            what = f"namespace {last.namespace}"
        case Cordoned() if last.source:
            what = f"node {last.node}"
        case _:
            return ""
    return (
        f"{what} is in the limits file of the pod-watcher {last.source!r}: change it there, "
        "or use --take-over when that pod-watcher no longer reads the file"
    )
