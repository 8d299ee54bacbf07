"""The ResourceClaims of the cluster, and which of our pods use them. Claims of other drivers are kept as well: a claim
may be listed before the pod that names it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from sluice.contracts.ids import RequestId
from sluice_pod_watcher.core.cluster.claims.claim_view import ClaimKey, ClaimView, read_claim_object
from sluice_pod_watcher.core.cluster.claims.class_store import ClassStore
from sluice_pod_watcher.core.cluster.events import ClaimGone, ClaimSeen, ListingEnded, ListingStarted, Raw
from sluice_pod_watcher.core.cluster.pods.pod_view import version_of


@dataclass(slots=True)
class ClaimStore:
    """The last known version of each claim. Each handler returns the pods with news."""

    is_served: bool | None = None  # whether the API server has resource.k8s.io/v1; None before it was asked
    was_listed: bool = False
    classes: ClassStore = field(default_factory=ClassStore)
    _claims: dict[ClaimKey, ClaimView] = field(default_factory=dict)
    _users: dict[ClaimKey, dict[RequestId, None]] = field(default_factory=dict)
    _listed: set[ClaimKey] | None = None
    unused: dict[ClaimKey, float] = field(default_factory=dict)
    """Claims that we allocated and that are reserved for none, and since when."""

    def get(self, namespace: str, name: str) -> ClaimView | None:
        """A claim, if there is one."""
        return self._claims.get((namespace, name))

    def users(self, key: ClaimKey) -> Iterable[RequestId]:
        """Our pods that name the claim."""
        return self._users.get(key, ())

    def all_users(self) -> list[RequestId]:
        """Our pods that name any claim."""
        return list({uid: None for users in self._users.values() for uid in users})

    def used_by(self, uid: RequestId, key: ClaimKey) -> None:
        """A pod of ours names the claim."""
        self._users.setdefault(key, {})[uid] = None

    def unused_by(self, uid: RequestId, key: ClaimKey) -> None:
        """The pod is gone."""
        users = self._users.get(key, {})
        users.pop(uid, None)
        if not users:
            self._users.pop(key, None)

    def handle(self, event: ClaimSeen | ClaimGone | ListingStarted | ListingEnded, now: float) -> list[RequestId]:
        """Handle one event of the watch."""
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
