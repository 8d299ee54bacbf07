"""
When a webhook's certificate is made anew, which one is shown, and which authorities its callers are to trust.

A *generation* is a certificate with an authority of its own that signed this one certificate and whose key is thrown
away: nothing is kept that could sign another. A new generation is made long before the old one ends, its authority is
published first, and it is shown only after the API servers have had time to learn it. Pure: the wall clock is an
argument, for validity is written in wall-clock times.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

import msgspec

GENERATIONS_MAX = 8
"""Kept at once: more than two are there only while names change."""
SKEW = timedelta(hours=1)
"""A certificate is valid that long before it was made, for callers whose clocks are behind."""


class Generation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One certificate with its authority, all as PEM; `made` and `expires` in UTC."""

    authority_pem: str
    certificate_pem: str
    key_pem: str
    names: tuple[str, ...]
    made: datetime
    expires: datetime


class Generations(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is kept, oldest first."""

    version: Literal[1] = 1
    generations: tuple[Generation, ...] = ()


@dataclass(frozen=True, slots=True)
class CertificateConfig:
    """How long things hold. Raises ValueError when a certificate could end before its successor is shown."""

    validity: timedelta = timedelta(days=90)
    renew_before: timedelta = timedelta(days=30)
    """The successor is made that long before the end: a month in which an outage of the store does no harm."""
    overlap: timedelta = timedelta(hours=1)
    """
    An authority is published that long before its certificate is shown. API servers learn a new caBundle by their
    watch, within seconds; other replicas of the webhook at their next refresh.
    """

    def __post_init__(self) -> None:
        """Refuse what could not work."""
        if not timedelta(0) <= self.overlap < self.renew_before < self.validity:
            raise ValueError(
                f"overlap {self.overlap}, renew_before {self.renew_before}, validity {self.validity}: "
                "each must be less than the next"
            )


def is_due(kept: Sequence[Generation], names: Sequence[str], now: datetime, config: CertificateConfig) -> bool:
    """Whether a new generation is to be made: none that holds now, for these names, lasts long enough."""
    lasting = [each for each in _begun(kept, now) if each.expires - now > config.renew_before]
    return all(each.names != tuple(names) for each in lasting)


def with_new(kept: Sequence[Generation], new: Generation, now: datetime) -> Generations:
    """What is to be kept with a new generation: those that have ended are dropped."""
    return Generations(generations=(*alive(kept, now), new)[-GENERATIONS_MAX:])


def alive(kept: Sequence[Generation], now: datetime) -> tuple[Generation, ...]:
    """Those that have not ended."""
    return tuple(each for each in kept if each.expires > now)


def _begun(kept: Sequence[Generation], now: datetime) -> tuple[Generation, ...]:
    """Those that hold already: a clock that was ahead makes some that no caller takes until then."""
    return tuple(each for each in kept if each.made - SKEW <= now)


def bundle(kept: Sequence[Generation], now: datetime) -> str:
    """The authorities to trust, as PEM: the caBundle."""
    return "".join(each.authority_pem for each in alive(kept, now))


def shown(
    kept: Sequence[Generation], names: Sequence[str], now: datetime, config: CertificateConfig, *, published: str
) -> Generation | None:
    """
    The generation to show: the newest for these names whose authority was published long enough ago.

    Where none is (the very first one, or the others have ended), the oldest for these names: nobody trusts another.
    `published` is the caBundle that is known to be out.
    """
    fitting = [each for each in _begun(alive(kept, now), now) if each.names == tuple(names)]
    ripe = [each for each in fitting if each.authority_pem in published and now - each.made >= config.overlap]
    if ripe:
        return ripe[-1]
    return fitting[0] if fitting else None
