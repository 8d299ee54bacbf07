"""
Pod-level options besides the claims: what may be done with the pod, and its group.

Reads our own keys only; other vocabularies have no equivalent.
"""

import re
from collections.abc import Mapping

from sluice.contracts import idle_rules
from sluice.contracts.messages import NO_LEEWAY, Leeway, PodGroup
from sluice.contracts.messages.requests import Substitute
from sluice.contracts.reasons import RefusalReason
from sluice.contracts.request_syntax import values
from sluice.contracts.request_syntax.keys import SLUICE
from sluice.contracts.request_syntax.source_text import SourceValue

GROUP_SIZE_MAX = 1000
"""Pods of one job. A group is decided as a whole, so its size bounds one decision."""
_GROUP_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,61}[a-z0-9])?")
_SUBSTITUTES: Mapping[str, Substitute] = {"false": "no", "true": "stay", "return": "return"}


def leeway_of(given: Mapping[str, SourceValue]) -> Leeway:
    """What the pod's owner allows. Raises RequestSyntaxError."""
    preemptible = values.boolean(given["preemptible"]) if "preemptible" in given else False
    movable = values.boolean(given["movable"]) if "movable" in given else False
    substitute = given.get("substitute")
    chosen = _SUBSTITUTES[values.choice(substitute, tuple(_SUBSTITUTES))] if substitute is not None else "no"
    found = Leeway(
        preemptible=preemptible,
        movable=movable,
        substitute=chosen,
        idle_after_s=_idle_after_s(given.get("idle-after")),
        idle_protected=_idle_protected(given.get("idle-protected")),
    )
    return NO_LEEWAY if found == NO_LEEWAY else found


def _idle_after_s(written: SourceValue | None) -> int | None:
    if written is None:
        return None
    found = idle_rules.idle_after_s(written.text())
    if found is None:
        raise written.wrong(RefusalReason.INVALID_VALUE, "not a time that works", idle_rules.AFTER_ALLOWED)
    return found


def _idle_protected(written: SourceValue | None) -> str:
    text = written.text() if written is not None else ""
    if written is not None and idle_rules.windows_of(text) is None:
        raise written.wrong(RefusalReason.INVALID_VALUE, "not a window of time", idle_rules.WINDOW_ALLOWED)
    return text


def group_of(given: Mapping[str, SourceValue]) -> PodGroup | None:
    """The pod's group, None without one. Raises RequestSyntaxError."""
    name, size = given.get("group"), given.get("group-size")
    if name is None and size is None:
        return None
    if name is None or size is None:
        one, other = (name, "group-size") if size is None else (size, "group")
        assert one is not None
        why = f"a group has a name and a size, and {SLUICE}/{other} is missing"
        raise one.wrong(RefusalReason.CONTRADICTION, why, f"{SLUICE}/{other} beside it")
    text = name.text()
    if _GROUP_NAME.fullmatch(text) is None:
        allowed = "at most 63 of a-z, 0-9, '-' and '.', beginning and ending with a letter or digit"
        raise name.wrong(RefusalReason.INVALID_VALUE, "no name of a group", allowed)
    return PodGroup(name=text, size=values.whole(size, 1, GROUP_SIZE_MAX))
