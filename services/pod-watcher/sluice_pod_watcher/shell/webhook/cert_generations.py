"""Decide when to renew the webhook's certificate, which to serve, and which authorities its callers trust. A
*generation* is a certificate with an authority of its own, whose key is dropped after signing it. A new one is made
long before the old one ends, and served once API servers know its authority. Pure but for randomness."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Literal

import msgspec

from sluice.runtime.tls.certificate_authority import AS_CLIENT, AS_SERVER, issue, new_authority

GENERATIONS_MAX = 8  # kept at once: more than two exist only while names change
SKEW = timedelta(hours=1)  # a certificate is valid from this long before it was made, for callers with slow clocks


class Generation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One certificate with its authority, all as PEM; `made` and `expires` in UTC."""

    authority_pem: str
    certificate_pem: str
    key_pem: str
    names: tuple[str, ...]
    made: datetime
    expires: datetime


class Generations(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The kept generations, oldest first."""

    version: Literal[1] = 1
    generations: tuple[Generation, ...] = ()


class CertificateConfig(msgspec.Struct, frozen=True):
    """Validity and renewal. Raises ValueError when a certificate could end before its successor is served."""

    validity: timedelta = timedelta(days=90)
    renew_before: timedelta = timedelta(days=30)  # early, as the store may be away for a month
    overlap: timedelta = timedelta(hours=1)
    """An authority is published this long before its certificate is served. API servers learn a new caBundle by their
    watch, within seconds; other replicas of the webhook at their next refresh."""

    def __post_init__(self) -> None:
        if not timedelta(0) <= self.overlap < self.renew_before < self.validity:
            raise ValueError(
                f"overlap {self.overlap}, renew_before {self.renew_before}, validity {self.validity}: "
                "each must be less than the next"
            )


def make_generation(
    names: Sequence[str], made: datetime, validity: timedelta, *, of: str = "webhook", calls: bool = False
) -> Generation:
    """A new generation for DNS names or IP addresses (at least one), valid until `made + validity`; `of` names the
    authority, whose key lives in this call only. One that `calls` is a client too."""
    if not names:
        raise ValueError("a certificate needs at least one name")
    made = made.replace(microsecond=0)
    authority = new_authority(f"Sluice {of} {made:%Y-%m-%dT%H:%M:%SZ}", made, lasts=validity)
    pair = issue(authority, names, (AS_SERVER, AS_CLIENT) if calls else (AS_SERVER,), made, lasts=validity)
    return Generation(
        authority_pem=authority.certificate.decode(),
        certificate_pem=pair.certificate.decode(),
        key_pem=pair.key.decode(),
        names=tuple(names),
        made=made,
        expires=made + validity,
    )


def is_due(kept: Sequence[Generation], names: Sequence[str], now: datetime, config: CertificateConfig) -> bool:
    """Whether to make a new generation: no valid one for these names lasts long enough."""
    lasting = [each for each in _begun(kept, now) if each.expires - now > config.renew_before]
    return all(each.names != tuple(names) for each in lasting)


def with_new(kept: Sequence[Generation], new: Generation, now: datetime) -> Generations:
    return Generations(generations=(*alive(kept, now), new)[-GENERATIONS_MAX:])


def alive(kept: Sequence[Generation], now: datetime) -> tuple[Generation, ...]:
    return tuple(each for each in kept if each.expires > now)


def _begun(kept: Sequence[Generation], now: datetime) -> tuple[Generation, ...]:
    """The generations that are valid already: a fast clock makes some that no caller accepts yet."""
    return tuple(each for each in kept if each.made - SKEW <= now)


def bundle(kept: Sequence[Generation], now: datetime) -> str:
    return "".join(each.authority_pem for each in alive(kept, now))


def shown(
    kept: Sequence[Generation], names: Sequence[str], now: datetime, config: CertificateConfig, *, published: str
) -> Generation | None:
    """The generation to serve: the newest for these names that was `published` long enough ago; else their oldest."""
    fitting = [each for each in _begun(alive(kept, now), now) if each.names == tuple(names)]
    ripe = [each for each in fitting if each.authority_pem in published and now - each.made >= config.overlap]
    if ripe:
        return ripe[-1]
    return fitting[0] if fitting else None
