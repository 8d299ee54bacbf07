"""Log lines for people, one per change. Formatting only."""

from sluice.contracts.messages import BindingMessage, Bound, Held, Refused, Released
from sluice.contracts.reasons import shorten
from sluice.contracts.request_syntax import claims_text
from sluice_pod_watcher.core.folder.events import IdentityRecord, WriteLogLine
from sluice_pod_watcher.core.folder.manifests import ManifestPod


def pod(record: IdentityRecord) -> str:
    return f"{record.namespace}/{record.name} ({record.file})" if record.name else record.file


def asks(record: IdentityRecord) -> WriteLogLine:
    last = record.asks[-1]
    if last.refusal is not None:
        return WriteLogLine("warning", f"{pod(record)} is refused: {last.refusal.sentence()}", record.uid)
    now = "now asks" if len(record.asks) > 1 else "asks"
    return WriteLogLine("info", f"{pod(record)} {now} for {claims_text(last.claims)}", record.uid)


def warnings(record: IdentityRecord) -> list[WriteLogLine]:
    """Parts of a manifest that are accepted, but probably mean something else than intended."""
    return [WriteLogLine("warning", f"{pod(record)}: {each}", record.uid) for each in record.asks[-1].terms.warnings]


def ended(record: IdentityRecord, why: str) -> WriteLogLine:
    return WriteLogLine("info", f"{pod(record)} {why}; its request is withdrawn", record.uid)


def stays(record: IdentityRecord) -> WriteLogLine:
    refusal = record.asks[-1].refusal
    why = refusal.sentence() if refusal is not None else ""
    return WriteLogLine("warning", f"{pod(record)} keeps its request, as the edit is invalid: {why}", record.uid)


def asks_nothing(file: str, found: ManifestPod) -> list[WriteLogLine]:
    """A pod without a request, with warnings of what it gets anyway; or an object that is no pod."""
    if found.skipped:
        return [WriteLogLine("info", found.skipped)]
    who = f"{found.namespace}/{found.name or '(no name)'} ({file})"
    warned = [WriteLogLine("warning", f"{who}: {each}") for each in found.terms.warnings]
    return [WriteLogLine("info", f"{who} requests no slice: ignored"), *warned]


def answered(who: str, uid: str, answer: BindingMessage, held: Held | None) -> WriteLogLine:
    """The allocator answered request `uid` of a pod; `held` is its slice."""
    match answer:
        case Bound() if held is not None and not answer.is_for(held):
            other = f"slice {shorten(answer.allocation)} was withdrawn"
            return WriteLogLine("info", f"{who} keeps slice {held.allocation} on {held.node}: {other}", uid)
        case Bound():
            devices = "; ".join(f"{each.container}: {each.visible_devices}" for each in answer.containers)
            again = " again" if answer.revision > 1 else ""
            has = f"{who} has its slice{again} on {answer.node}: {devices}"
            if answer.warnings:
                return WriteLogLine("warning", f"{has}; but: {shorten('; '.join(answer.warnings), 400)}", uid)
            return WriteLogLine("info", has, uid)
        case Refused():
            return WriteLogLine("warning", f"{who} was refused: {answer.refusal.sentence()}", uid)
        case Released():
            return WriteLogLine("info", f"{who} holds no slice now ({shorten(answer.cause)})", uid)


def waits(who: str, uid: str, message: str) -> WriteLogLine:
    return WriteLogLine("info", f"{who} waits: {shorten(message, 400)}", uid)
