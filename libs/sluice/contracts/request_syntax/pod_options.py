"""Pod-level options in our own keys, besides the claims: what may be done with the pod, and its group."""

import re
from collections.abc import Mapping

from sluice.contracts import driver_capabilities, idle_rules
from sluice.contracts.driver_capabilities import chosen as chosen_from
from sluice.contracts.kube.names import ENV_DRIVER_CAPABILITIES
from sluice.contracts.messages import NO_LEEWAY, Claim, Leeway, PodGroup
from sluice.contracts.messages.requests import Substitute
from sluice.contracts.request_syntax import values
from sluice.contracts.request_syntax.keys import SLUICE
from sluice.contracts.request_syntax.pod_request import ContainerRequest, RequestLimits
from sluice.contracts.request_syntax.source_text import SourceValue, did_you_mean

CHARACTERS_MAX = 200
"""Of one list; all capabilities together have half of that."""


def chosen_for(
    container: ContainerRequest, claim: Claim | None, given: Mapping[str, SourceValue], limits: RequestLimits
) -> str:
    """A container's capabilities by its own key or the pod's; empty: by its devices. Raises RequestSyntaxError."""
    own = given.get(container.name)
    if claim is None:
        if own is not None:
            why = "it only says how to use a GPU, and the container asks for none"
            raise own.contradiction(why, f"for instance {container.name}.{SLUICE}/memory beside it")
        return ""
    variable = SourceValue(f"{container.name}: env {ENV_DRIVER_CAPABILITIES}", container.driver_capabilities)
    in_env, in_own = read(variable, limits), read(own, limits) if own is not None else ""
    if own is not None and in_own and in_env and not driver_capabilities.same(in_own, in_env):
        raise own.contradicts(variable, "these say the same thing", "one of them")
    of_pod = given.get("")
    chosen = in_own or in_env or (read(of_pod, limits) if of_pod is not None else "")
    restricts = not set(limits.driver_capabilities) >= set(driver_capabilities.CAPABILITIES)
    return chosen or (driver_capabilities.implied((claim.profile,), limits.driver_capabilities) if restricts else "")


def read(written: SourceValue, limits: RequestLimits) -> str:
    """A list of capabilities; empty when none is named. Raises RequestSyntaxError."""
    allowed = f"{', '.join(limits.driver_capabilities)}, or {driver_capabilities.ALL}"
    text = written.text()
    if len(text) > CHARACTERS_MAX:
        raise written.too_large("too long", allowed)
    try:
        return chosen_from(text, limits.driver_capabilities)
    except driver_capabilities.CapabilityError as error:
        known = (*driver_capabilities.CAPABILITIES, driver_capabilities.ALL)
        near = "" if error.word in known else did_you_mean(error.word, known)
        raise written.invalid(f"{error}{near}", allowed) from None


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
        raise written.invalid("not a time that works", idle_rules.AFTER_ALLOWED)
    return found


def _idle_protected(written: SourceValue | None) -> str:
    text = written.text() if written is not None else ""
    if written is not None and idle_rules.windows_of(text) is None:
        raise written.invalid("not a window of time", idle_rules.WINDOW_ALLOWED)
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
        raise one.contradiction(why, f"{SLUICE}/{other} beside it")
    text = name.text()
    if _GROUP_NAME.fullmatch(text) is None:
        allowed = "at most 63 of a-z, 0-9, '-' and '.', beginning and ending with a letter or digit"
        raise name.invalid("no name of a group", allowed)
    return PodGroup(name=text, size=values.whole(size, 1, GROUP_SIZE_MAX))
