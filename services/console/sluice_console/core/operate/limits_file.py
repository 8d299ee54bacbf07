"""Words that are not a person's to change at a console: those that a limits file says (docs/quotas.md)."""

from sluice.contracts.messages import AnyMessage, Cordoned, QuotaSet


def why_of_a_file(last: AnyMessage | None) -> str:
    """Why the last word is not to be changed here, and where it is; empty when a person said it, or nobody did."""
    match last:
        case QuotaSet() if last.source:
            what = f"namespace {last.namespace}"
        case Cordoned() if last.source:
            what = f"node {last.node}"
        case _:
            return ""
    return (
        f"{what} is in the limits file of the pod-watcher {last.source!r}: change it there, "
        "or use --take-over when no allocator reads that file any more"
    )
