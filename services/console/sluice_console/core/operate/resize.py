"""
`sluice adjust`: what a person wrote as a question, and the allocator's answer in words and as data.

It decides nothing: what fits, and when it is felt, the allocator says.
"""

from collections.abc import Callable
from dataclasses import dataclass

from sluice.contracts.kube.quantities import NotANumber, parse_decimal, parse_memory_mib, parse_whole, suspicious_memory
from sluice.contracts.pb import allocator_pb2 as pb
from sluice_console.core.documents import AdjustDocument, AdjustedFieldDocument, FittingDocument

_WORDS = {
    "memory_mib": "memory",
    "sm_partition": "SM partition",
    "quota_request_permille": "sure part of time",
    "quota_limit_permille": "allowed part of time",
}
_WHEN = {
    "unchanged": "as it was",
    "now": "now",
    "next process start": "from the next start of its containers; running processes keep the old size",
}


class AdjustError(Exception):
    """What was written is no size. One sentence, with the option."""


@dataclass(frozen=True, slots=True)
class SizeChange:
    """What a person named, as it was written; None leaves it as it is."""

    memory: str | None = None
    sm_partition: str | None = None
    quota_request: str | None = None
    quota_limit: str | None = None


def question_of(request: str, container: str, sizes: SizeChange, *, dry_run: bool) -> pb.AdjustRequest:
    """The question to the allocator. Raises AdjustError."""
    asked = pb.AdjustRequest(request=request, container=container, dry_run=dry_run)
    memory_mib = _number("--memory", sizes.memory, parse_memory_mib, "an amount like 8Gi, 8000Mi or 8000 (MiB)")
    partition = _number("--sm-partition", sizes.sm_partition, parse_whole, "whole percents of the GPU's SMs")
    sure = _number("--quota-request", sizes.quota_request, _part, "a fraction of time from 0.001 to 1")
    allowed = _number("--quota-limit", sizes.quota_limit, _part, "a fraction of time from 0.001 to 1")
    if memory_mib is not None:
        doubt = suspicious_memory(sizes.memory or "")
        if doubt:
            raise AdjustError(f"--memory: {doubt}")
        asked.memory_mib = memory_mib
    if partition is not None:
        asked.sm_partition = partition
    if sure is not None:
        asked.quota_request_permille = sure
    if allowed is not None:
        asked.quota_limit_permille = allowed
    if sizes == SizeChange():
        raise AdjustError("name at least one size, --memory 8Gi for instance")
    return asked


def document_of(request: str, name: str, answer: pb.AdjustResponse, *, dry_run: bool) -> AdjustDocument:
    """The answer as it is printed."""
    if answer.WhichOneof("outcome") == "refused":
        refused = answer.refused
        return AdjustDocument(
            request=request,
            name=name,
            outcome="refused",
            dry_run=dry_run,
            reason=_camel(pb.AdjustRefusal.Name(refused.reason).removeprefix("ADJUST_REFUSAL_")),
            message=refused.message,
            field=refused.field,
            most=tuple(FittingDocument(field=each.field, value=each.value) for each in refused.most),
            under_way=refused.under_way,
        )
    done = answer.adjusted
    return AdjustDocument(
        request=request,
        name=name,
        outcome="would be adjusted" if done.dry_run else "adjusted",
        dry_run=done.dry_run,
        container=done.container,
        node=done.node,
        allocation=done.allocation,
        revision=done.revision,
        fields=tuple(
            AdjustedFieldDocument(
                field=each.field,
                before=each.before,
                after=each.after,
                effect=pb.AdjustEffect.Name(each.effect).removeprefix("ADJUST_EFFECT_").lower().replace("_", " "),
            )
            for each in done.fields
        ),
    )


def lines_of(document: AdjustDocument) -> list[str]:
    """The answer as a person reads it."""
    if document.outcome == "refused":
        more = "; its node agent has not carried it out yet" if document.under_way else ""
        return [f"{document.name} stays as it is ({document.reason}): {document.message}{more}"]
    verb = "would be adjusted" if document.dry_run else "is adjusted"
    first = f"{document.name} {verb} on {document.node}, container {document.container}:"
    changed = [each for each in document.fields if each.effect != "unchanged"]
    lines = [
        f"  {_WORDS[each.field]} {_text(each.field, each.before)} -> {_text(each.field, each.after)}, "
        f"{_WHEN[each.effect]}"
        for each in changed
    ]
    smaller = any(each.after < each.before and each.effect == "next process start" for each in changed)
    if smaller:
        lines.append("  the old size counts until the running processes have ended")
    return [first, *lines]


def _number(option: str, text: str | None, parse: Callable[[str], int | NotANumber], right: str) -> int | None:
    if text is None:
        return None
    number = parse(text)
    if isinstance(number, NotANumber) or not 0 <= number < 2**31:
        raise AdjustError(f"{option} {text}: {right}")
    return number


def _part(text: str) -> int | NotANumber:
    return parse_decimal(text, 3)


def _text(field: str, value: int) -> str:
    match field:
        case "memory_mib":
            return f"{value} MiB"
        case "sm_partition":
            return f"{value} %" if value else "all"
        case _:
            return f"{value / 1000:g}"


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))
