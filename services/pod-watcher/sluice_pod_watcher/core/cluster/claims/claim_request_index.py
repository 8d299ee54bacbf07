"""The request that stands for a ResourceClaim: that of the first pod that named it. Other pods that name the claim
start beside it, on its node. A request on the bus goes before one that is not there yet."""

from dataclasses import dataclass, field

from sluice.contracts.ids import RequestId
from sluice.contracts.messages import ResourceClaimRef
from sluice_pod_watcher.core.cluster.claims.claim_view import ClaimKey
from sluice_pod_watcher.core.cluster.pods.pod_record import PodRecord


@dataclass(slots=True)
class ClaimRequestIndex:
    """By the UID of each claim, its request; and claims that lost theirs."""

    freed: dict[ClaimKey, None] = field(default_factory=dict)  # their request is over: the next pod may ask
    _by_claim: dict[str, PodRecord] = field(default_factory=dict)
    _refs: dict[RequestId, tuple[ResourceClaimRef, ...]] = field(default_factory=dict)

    def of(self, claim_uid: str) -> RequestId | None:
        record = self._by_claim.get(claim_uid)
        return record.uid if record is not None else None

    def update(self, record: PodRecord) -> list[RequestId]:
        """The terms of a request changed, or it is over. Returns the requests that yield to it."""
        refs = record.terms.resource_claims if record.terms is not None and record.ended is None else ()
        if refs == self._refs.get(record.uid, ()):
            return []
        self.forget(record, keep={ref.uid for ref in refs})
        yielding: dict[RequestId, None] = {}
        for ref in refs:
            other = self._by_claim.setdefault(ref.uid, record)
            if other is not record and record.on_bus and not other.on_bus:
                self._by_claim[ref.uid] = record
                yielding[other.uid] = None
        if refs:
            self._refs[record.uid] = refs
        return list(yielding)

    def forget(self, record: PodRecord, keep: frozenset[str] | set[str] = frozenset()) -> None:
        """The request stands for no claim any more, but for those with these UIDs."""
        for ref in self._refs.pop(record.uid, ()):
            if ref.uid not in keep and self._by_claim.get(ref.uid) is record:
                del self._by_claim[ref.uid]
                self.freed[record.namespace, ref.name] = None
