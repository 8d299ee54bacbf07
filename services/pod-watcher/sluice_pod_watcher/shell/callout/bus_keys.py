"""The keys of the bus: which exist, when they are renewed, and what the broker gets of them. Pure but for randomness. A
generation is a certificate of the broker with its own authority (`webhook.cert_generations` has the rules), and an
issuer for logins. The broker takes both at its next start, and replicas of the callout answer by any issuer that they
keep, so a rotation cuts nothing off. The callout's own keys stay: a reader of the Secret has all rights anyway."""

import hashlib
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Literal

import msgspec

from sluice_pod_watcher.shell.callout.nkeys import KeyKind, NKey
from sluice_pod_watcher.shell.webhook import cert_generations
from sluice_pod_watcher.shell.webhook.cert_generations import CertificateConfig, Generation

ROTATION = CertificateConfig(validity=timedelta(days=365), renew_before=timedelta(days=60))
"""Each change of what the broker has is a rolling restart of it, so there are few."""


class BusGeneration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A certificate of the broker, and the seed of an issuer."""

    tls: Generation
    issuer: str


class BusKeys(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All secrets of the bus; `generations` oldest first, the others are seeds."""

    version: Literal[1] = 1
    generations: tuple[BusGeneration, ...]
    user: str
    curve: str

    @property
    def tls(self) -> tuple[Generation, ...]:
        return tuple(each.tls for each in self.generations)

    def issuers(self) -> dict[str, NKey]:
        """The signing keys by their public ones. Raises NotAKeyError."""
        keys = (NKey.from_seed(each.issuer, KeyKind.ACCOUNT) for each in self.generations)
        return {key.public: key for key in keys}


def renewed(kept: BusKeys | None, names: Sequence[str], now: datetime) -> BusKeys:
    """`kept`, or with a new generation when one is due."""
    if kept is None:
        kept = BusKeys(generations=(), user=NKey.make(KeyKind.USER).seed, curve=NKey.make(KeyKind.CURVE).seed)
    if not cert_generations.is_due(kept.tls, names, now, ROTATION):
        return kept
    tls = cert_generations.make_generation(names, now, ROTATION.validity, of="bus", calls=True)
    new = BusGeneration(tls=tls, issuer=NKey.make(KeyKind.ACCOUNT).seed)
    keep = cert_generations.with_new(kept.tls, tls, now).generations
    return msgspec.structs.replace(kept, generations=tuple(g for g in (*kept.generations, new) if g.tls in keep))


def trusted(keys: BusKeys, now: datetime) -> str:
    """The authorities that clients trust, PEM."""
    return cert_generations.bundle(keys.tls, now)


def broker_files(keys: BusKeys, names: Sequence[str], now: datetime, *, published: str) -> dict[str, str] | None:
    """The broker's files, while clients trust `published`; None if no certificate is valid."""
    tls = cert_generations.shown(keys.tls, names, now, ROTATION, published=published)
    if tls is None:
        return None
    issuer = next(each.issuer for each in keys.generations if each.tls == tls)
    public = {
        "SLUICE_ISSUER": NKey.from_seed(issuer, KeyKind.ACCOUNT).public,
        "SLUICE_CALLOUT": NKey.from_seed(keys.user, KeyKind.USER).public,
        "SLUICE_XKEY": NKey.from_seed(keys.curve, KeyKind.CURVE).public,
    }
    return {
        "tls.crt": tls.certificate_pem,
        "tls.key": tls.key_pem,
        "ca.crt": "".join(each.authority_pem for each in cert_generations.alive(keys.tls, now)),
        "keys.conf": "".join(f"{name}: {key}\n" for name, key in public.items()),
    }


def fingerprint(files: dict[str, str]) -> str:
    """A short text that differs when the files do, and tells nothing about them."""
    return hashlib.sha256(msgspec.json.encode(sorted(files.items()))).hexdigest()[:16]
