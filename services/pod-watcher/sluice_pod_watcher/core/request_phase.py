"""How far a pod is, in one word, for counts that people watch. Nothing may be decided from it."""

from typing import Literal

from sluice.contracts.messages import BindingMessage, Bound, Refused

RequestPhase = Literal["asking", "waiting", "bound", "refused", "ending"]


def phase_of(answer: BindingMessage | None, *, wanted: bool, understood: bool, waits: bool) -> RequestPhase:
    """By the binding's last word, and whether it is still wanted, can be understood, and was told why it waits."""
    if not wanted:
        return "ending"
    if isinstance(answer, Refused) or not understood:
        return "refused"
    if isinstance(answer, Bound):
        return "bound"
    return "waiting" if waits else "asking"
