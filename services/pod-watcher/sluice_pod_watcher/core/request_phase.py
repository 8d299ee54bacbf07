"""The phase of a request in one word, for metrics. Display only."""

from typing import Literal

from sluice.contracts.messages import BindingMessage, Bound, Refused

RequestPhase = Literal["asking", "waiting", "bound", "refused", "ending"]


def phase_of(answer: BindingMessage | None, *, wanted: bool, understood: bool, waits: bool) -> RequestPhase:
    """From the last answer: is the request still wanted, was it understood, and is a reason to wait known?"""
    if not wanted:
        return "ending"
    if isinstance(answer, Refused) or not understood:
        return "refused"
    if isinstance(answer, Bound):
        return "bound"
    return "waiting" if waits else "asking"
