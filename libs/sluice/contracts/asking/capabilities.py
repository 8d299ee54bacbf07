"""
Choose a container's driver capabilities: from its own annotation, its variable, or the pod's annotation.

Independent of the vocabulary of the request: capabilities go with each of them.
"""

from collections.abc import Mapping

from sluice.contracts.asking.keys import SLUICE
from sluice.contracts.asking.pods import AskLimits, ContainerAsk
from sluice.contracts.asking.written import Written, nearest
from sluice.contracts.driver_capabilities import (
    ALL,
    CAPABILITIES,
    NotAllowedError,
    UnknownCapabilityError,
    implied,
    same,
)
from sluice.contracts.driver_capabilities import chosen as chosen_from
from sluice.contracts.kubernetes import ENV_DRIVER_CAPABILITIES
from sluice.contracts.messages import Claim
from sluice.contracts.refusals import RefusalReason

CHARACTERS_MAX = 200
"""Of one list; all words together have half of that."""


def chosen_for(container: ContainerAsk, claim: Claim | None, said: Mapping[str, Written], limits: AskLimits) -> str:
    """
    What a container is to be given, for its Claim; empty where its devices shall decide. Raises AskError.

    `said` are the annotations, by container, and that of the pod under no name.
    """
    own = said.get(container.name)
    if claim is None:
        if own is not None:
            why = "it says how, and nothing says what: the container asks for no GPU"
            raise own.wrong(
                RefusalReason.CONTRADICTION, why, f"for instance {container.name}.{SLUICE}/memory beside it"
            )
        return ""
    variable = Written(f"{container.name}: env {ENV_DRIVER_CAPABILITIES}", container.driver_capabilities)
    in_env, in_own = read(variable, limits), read(own, limits) if own is not None else ""
    if own is not None and in_own and in_env and not same(in_own, in_env):
        raise own.contradicts(variable, "these say the same thing", "one of them")
    of_pod = said.get("")
    chosen = in_own or in_env or (read(of_pod, limits) if of_pod is not None else "")
    restricts = not set(limits.driver_capabilities) >= set(CAPABILITIES)
    return chosen or (implied((claim.profile,), limits.driver_capabilities) if restricts else "")


def read(written: Written, limits: AskLimits) -> str:
    """A list of capabilities; empty when none is named. Raises AskError."""
    allowed = f"{', '.join(limits.driver_capabilities)}, or {ALL}"
    text = written.text()
    if len(text) > CHARACTERS_MAX:
        raise written.wrong(RefusalReason.TOO_LARGE, "too long", allowed)
    try:
        return chosen_from(text, limits.driver_capabilities)
    except UnknownCapabilityError as error:
        why = f"{error}{nearest(error.word, (*CAPABILITIES, ALL))}"
        raise written.wrong(RefusalReason.INVALID_VALUE, why, allowed) from None
    except NotAllowedError as error:
        raise written.wrong(RefusalReason.INVALID_VALUE, str(error), allowed) from None
