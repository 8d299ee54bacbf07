"""The sentences of the log: one per change, for people. Nothing is decided here."""

from sluice.contracts.messages import BindingMessage, Bound, Claim, Held, Refused, Released
from sluice.contracts.reasons import shorten
from sluice.contracts.request_syntax import claim_modes, claim_sizes
from sluice_pod_watcher.core.folder.events import IdentityRecord, WriteLogLine
from sluice_pod_watcher.core.folder.manifests import ManifestPod


def pod(record: IdentityRecord) -> str:
    """Whom it is about: the pod and its file, or the file alone."""
    return f"{record.namespace}/{record.name} ({record.file})" if record.name else record.file


def ask(claims: tuple[Claim, ...]) -> str:
    """What is asked for, per container."""
    return "; ".join(f"{claim.container}: {_claim(claim)}" for claim in claims)


def _claim(claim: Claim) -> str:
    sizes = claim_sizes(claim)
    size = ", ".join(sizes) or "a whole GPU"
    how = "" if claim.modes == ("exclusive",) else f" ({claim_modes(claim)})"
    return f"{claim.gpus} x {size}{how}" if claim.gpus > 1 else f"{size}{how}"


def asks(record: IdentityRecord) -> WriteLogLine:
    """A record says something new."""
    last = record.asks[-1]
    if last.refusal is not None:
        return WriteLogLine("warning", f"{pod(record)} is refused: {last.refusal.sentence()}", record.uid)
    now = "now asks" if len(record.asks) > 1 else "asks"
    return WriteLogLine("info", f"{pod(record)} {now} for {ask(last.claims)}", record.uid)


def warnings(record: IdentityRecord) -> list[WriteLogLine]:
    """What is taken as it was written, and may not be what was meant."""
    return [WriteLogLine("warning", f"{pod(record)}: {each}", record.uid) for each in record.asks[-1].terms.warnings]


def ended(record: IdentityRecord, why: str) -> WriteLogLine:
    """Nobody wants it any more."""
    return WriteLogLine("info", f"{pod(record)} {why}; its request is withdrawn", record.uid)


def stays(record: IdentityRecord) -> WriteLogLine:
    """An edit cannot be understood, and the pod goes on as it was."""
    refusal = record.asks[-1].refusal
    why = refusal.sentence() if refusal is not None else ""
    return WriteLogLine("warning", f"{pod(record)} stays as it was, for the edit is refused: {why}", record.uid)


def asks_nothing(file: str, found: ManifestPod) -> list[WriteLogLine]:
    """A pod that is none of ours, with what it may get all the same; or an object that is no pod."""
    if found.skipped:
        return [WriteLogLine("info", found.skipped)]
    who = f"{found.namespace}/{found.name or '(no name)'} ({file})"
    warned = [WriteLogLine("warning", f"{who}: {each}") for each in found.terms.warnings]
    return [WriteLogLine("info", f"{who} requests no slice: ignored"), *warned]


def answered(who: str, uid: str, answer: BindingMessage, held: Held | None) -> WriteLogLine:
    """The allocator has answered the request `uid` of a pod, which has `held`."""
    match answer:
        case Bound() if held is not None and not answer.is_for(held):
            other = f"slice {shorten(answer.allocation)} is not for it"
            return WriteLogLine("info", f"{who} keeps slice {held.allocation} on {held.node}: {other} any more", uid)
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
            return WriteLogLine("info", f"{who} holds nothing any more ({shorten(answer.cause)})", uid)


def waits(who: str, uid: str, message: str) -> WriteLogLine:
    """The request waits, and why."""
    return WriteLogLine("info", f"{who} waits: {shorten(message, 400)}", uid)
