"""The ResourceClaims of the cluster, other drivers' too, as one may be listed before the pod that names it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sluice.contracts.dra.names import DEVICE_CLASS
from sluice.contracts.ids import RequestId
from sluice.contracts.kube.names import LABEL_MANAGED, MANAGED
from sluice_pod_watcher.core.cluster import events, listed_objects
from sluice_pod_watcher.core.cluster.claims.claim_view import ClaimKey, ClaimView, read_claim_object
from sluice_pod_watcher.core.cluster.events import Raw, mapping_in


@dataclass(slots=True)
class ClassStore:
    """The last known version of each DeviceClass. Ours are `sluice.dev` and those with our label."""

    _specs: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    _labelled: dict[str, None] = field(default_factory=dict)
    _listing: listed_objects.Listing[str] = field(default_factory=listed_objects.Listing)

    @property
    def was_listed(self) -> bool:
        return self._listing.was_listed

    def handle(self, event: events.ObjectEvent) -> None:
        match event:
            case events.Seen():
                self._seen(event.object)
            case events.Gone():
                self._drop(event.object["metadata"]["name"])
            case events.ListingStarted():
                self._listing.started(event)
            case events.ListingEnded():
                for name in self._listing.ended(event, ((name, 0) for name in self._specs)):
                    self._drop(name)

    def exists(self, name: str) -> bool:
        return name in self._specs

    def is_ours(self, name: str) -> bool:
        """Whether Sluice serves a class, also while its object is missing."""
        return name == DEVICE_CLASS or name in self._labelled

    @property
    def ours(self) -> Mapping[str, Mapping[str, Any]]:
        return {name: spec for name, spec in self._specs.items() if self.is_ours(name)}

    def _seen(self, raw: Raw) -> None:
        name = raw["metadata"]["name"]
        self._listing.shows(name)
        self._specs[name] = mapping_in(raw, "spec")
        self._labelled.pop(name, None)
        if mapping_in(raw["metadata"], "labels").get(LABEL_MANAGED) == MANAGED:
            self._labelled[name] = None

    def _drop(self, name: str) -> None:
        self._specs.pop(name, None)
        self._labelled.pop(name, None)


@dataclass(slots=True)
class ClaimStore:
    """The last known version of each claim. Each handler returns the pods with news."""

    is_served: bool | None = None  # whether the API server has resource.k8s.io/v1; None before it was asked
    classes: ClassStore = field(default_factory=ClassStore)
    _claims: dict[ClaimKey, ClaimView] = field(default_factory=dict)
    _users: dict[ClaimKey, dict[RequestId, None]] = field(default_factory=dict)
    _listing: listed_objects.Listing[ClaimKey] = field(default_factory=listed_objects.Listing)
    unused: dict[ClaimKey, float] = field(default_factory=dict)  # allocated by us, reserved for none, and since when

    @property
    def was_listed(self) -> bool:
        return self._listing.was_listed

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

    def handle(self, event: events.ObjectEvent, now: float) -> list[RequestId]:
        match event:
            case events.Seen():
                return self.seen(event.object, now)
            case events.Gone():
                claim = read_claim_object(event.object)
                known = self._claims.get(claim.key) if claim is not None else None
                return [] if claim is None or known is None or known.uid != claim.uid else self._drop(claim.key)
            case events.ListingStarted():
                self._listing.started(event)
                if event.went_back:
                    self._claims = {key: replace(claim, version=0) for key, claim in self._claims.items()}
                return []
            case events.ListingEnded():
                return self._listing_ended(event)

    def seen(self, raw: Raw, now: float) -> list[RequestId]:
        claim = read_claim_object(raw)
        if claim is None:
            return []
        self._listing.shows(claim.key)
        known = self._claims.get(claim.key)
        if known is not None and known.version >= claim.version > 0:
            return []
        self._claims[claim.key] = claim
        if claim.is_of_our_driver and not claim.reserved and not claim.dying:
            self.unused.setdefault(claim.key, now)
        else:
            self.unused.pop(claim.key, None)
        return list(self.users(claim.key))

    def _drop(self, key: ClaimKey) -> list[RequestId]:
        self._claims.pop(key, None)
        self.unused.pop(key, None)
        return list(self.users(key))

    def _listing_ended(self, event: events.ListingEnded) -> list[RequestId]:
        was_listed, known = self.was_listed, ((key, claim.version) for key, claim in self._claims.items())
        news = {uid: None for key in self._listing.ended(event, known) for uid in self._drop(key)}
        if self.was_listed and not was_listed:
            news |= dict.fromkeys(self.all_users())
        return list(news)
