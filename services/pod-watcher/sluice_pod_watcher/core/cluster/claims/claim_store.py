"""The ResourceClaims of the cluster, and which of our pods use them. Claims of other drivers are kept as well: a claim
may be listed before the pod that names it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sluice.contracts.dra.names import DEVICE_CLASS
from sluice.contracts.ids import RequestId
from sluice.contracts.kube.names import LABEL_MANAGED, MANAGED
from sluice_pod_watcher.core.cluster.claims.claim_view import ClaimKey, ClaimView, read_claim_object
from sluice_pod_watcher.core.cluster.events import (
    ClaimGone,
    ClaimSeen,
    ClassGone,
    ClassSeen,
    ListingEnded,
    ListingStarted,
    Raw,
)
from sluice_pod_watcher.core.cluster.pods.pod_view import version_of


@dataclass(slots=True)
class ClassStore:
    """The last known version of each DeviceClass. Ours are `sluice.dev` and those with our label."""

    was_listed: bool = False
    _specs: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    _labelled: dict[str, None] = field(default_factory=dict)
    _listed: set[str] | None = None

    def handle(self, event: ClassSeen | ClassGone | ListingStarted | ListingEnded) -> None:
        match event:
            case ClassSeen():
                self._seen(event.device_class)
            case ClassGone():
                self._drop(_name(event.device_class))
            case ListingStarted():
                self._listed = set()
            case ListingEnded():
                listed, self._listed = self._listed, None
                for name in [name for name in self._specs if listed is not None and name not in listed]:
                    self._drop(name)
                self.was_listed = True

    def exists(self, name: str) -> bool:
        return name in self._specs

    def is_ours(self, name: str) -> bool:
        """Whether Sluice serves a class, also while its object is missing."""
        return name == DEVICE_CLASS or name in self._labelled

    @property
    def ours(self) -> Mapping[str, Mapping[str, Any]]:
        return {name: spec for name, spec in self._specs.items() if self.is_ours(name)}

    def _seen(self, raw: Raw) -> None:
        name, spec = _name(raw), raw.get("spec")
        if self._listed is not None:
            self._listed.add(name)
        self._specs[name] = spec if isinstance(spec, dict) else {}
        labels = raw["metadata"].get("labels") or {}
        if labels.get(LABEL_MANAGED) == MANAGED:
            self._labelled[name] = None
        else:
            self._labelled.pop(name, None)

    def _drop(self, name: str) -> None:
        self._specs.pop(name, None)
        self._labelled.pop(name, None)


def _name(raw: Raw) -> str:
    return str(raw["metadata"]["name"])


@dataclass(slots=True)
class ClaimStore:
    """The last known version of each claim. Each handler returns the pods with news."""

    is_served: bool | None = None  # whether the API server has resource.k8s.io/v1; None before it was asked
    was_listed: bool = False
    classes: ClassStore = field(default_factory=ClassStore)
    _claims: dict[ClaimKey, ClaimView] = field(default_factory=dict)
    _users: dict[ClaimKey, dict[RequestId, None]] = field(default_factory=dict)
    _listed: set[ClaimKey] | None = None
    unused: dict[ClaimKey, float] = field(default_factory=dict)  # allocated by us, reserved for none, and since when

    def get(self, namespace: str, name: str) -> ClaimView | None:
        return self._claims.get((namespace, name))

    def users(self, key: ClaimKey) -> Iterable[RequestId]:
        return self._users.get(key, ())

    def all_users(self) -> list[RequestId]:
        return list({uid: None for users in self._users.values() for uid in users})

    def used_by(self, uid: RequestId, key: ClaimKey) -> None:
        self._users.setdefault(key, {})[uid] = None

    def unused_by(self, uid: RequestId, key: ClaimKey) -> None:
        users = self._users.get(key, {})
        users.pop(uid, None)
        if not users:
            self._users.pop(key, None)

    def handle(self, event: ClaimSeen | ClaimGone | ListingStarted | ListingEnded, now: float) -> list[RequestId]:
        match event:
            case ClaimSeen():
                return self.seen(event.claim, now)
            case ClaimGone():
                return self._gone(event.claim)
            case ListingStarted():
                self._listed = set()
                if event.went_back:
                    self._claims = {key: replace(claim, version=0) for key, claim in self._claims.items()}
                return []
            case ListingEnded():
                return self._listing_ended(version_of(event.version))

    def seen(self, raw: Raw, now: float) -> list[RequestId]:
        """A version of a claim. Older versions are ignored."""
        claim = read_claim_object(raw)
        if claim is None:
            return []
        if self._listed is not None:
            self._listed.add(claim.key)
        known = self._claims.get(claim.key)
        if known is not None and known.version >= claim.version > 0:
            return []
        self._claims[claim.key] = claim
        if claim.is_of_our_driver and not claim.reserved and not claim.dying:
            self.unused.setdefault(claim.key, now)
        else:
            self.unused.pop(claim.key, None)
        return list(self.users(claim.key))

    def _gone(self, raw: Raw) -> list[RequestId]:
        claim = read_claim_object(raw)
        known = self._claims.get(claim.key) if claim is not None else None
        if claim is None or known is None or known.uid != claim.uid:
            return []
        return self._drop(claim.key)

    def _drop(self, key: ClaimKey) -> list[RequestId]:
        self._claims.pop(key, None)
        self.unused.pop(key, None)
        return list(self.users(key))

    def _listing_ended(self, version: int) -> list[RequestId]:
        listed, self._listed = self._listed, None
        if listed is None:
            return []
        news: dict[RequestId, None] = {}
        for key, claim in list(self._claims.items()):
            if key not in listed and not claim.version > version > 0:
                news |= dict.fromkeys(self._drop(key))
        if not self.was_listed:
            self.was_listed = True
            news |= dict.fromkeys(self.all_users())
        return list(news)
