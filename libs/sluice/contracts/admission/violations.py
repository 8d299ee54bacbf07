"""The problems of a pod: one sentence each, all in one answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from sluice.contracts.reasons import Refusal, RefusalReason, shorten

FORBIDDEN: Final = 403
"""Possibly intended, but not allowed."""
INVALID: Final = 422
CHARACTERS_MAX = 960
"""Of all sentences together, the first always whole: users read them in an Event, which holds 1,024 characters."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One reason to deny a pod. `code` is the HTTP status."""

    code: Literal[403, 422]
    refusal: Refusal

    @property
    def sentence(self) -> str:
        return self.refusal.sentence()


def forbidden(field: str, value: str, why: str, allowed: str) -> Violation:
    return Violation(FORBIDDEN, _refusal(RefusalReason.UNSUPPORTED_KEY, field, value, why, allowed))


def invalid(field: str, value: str, why: str, allowed: str) -> Violation:
    return Violation(INVALID, _refusal(RefusalReason.INVALID_VALUE, field, value, why, allowed))


def refused(refusal: Refusal) -> Violation:
    return Violation(INVALID, refusal)


def denial_of(problems: Sequence[Violation]) -> tuple[int, str]:
    """The code and the text of a denial for at least one problem: 403 if anything is forbidden."""
    code = max((problem.code for problem in problems), key=lambda each: each == FORBIDDEN)
    sentences = list(dict.fromkeys(problem.sentence for problem in problems))
    shown = sentences[:1]
    for sentence in sentences[1:]:
        if sum(len(each) + 2 for each in (*shown, sentence)) > CHARACTERS_MAX:
            break
        shown.append(sentence)
    more = len(sentences) - len(shown)
    return code, "; ".join([*shown, f"and {more} more"] if more else shown)


def _refusal(reason: RefusalReason, field: str, value: str, why: str, allowed: str) -> Refusal:
    return Refusal(reason=reason, message=why, field=shorten(field, 240), value=shorten(value), allowed=allowed)
