"""What must hold of the ResourceClaims of a cluster. Shares no code with what writes them.

A claim is allocated and reserved in one write, with its finalizer, a timestamp and one node by name; a device's name is
never used for two allocations; a gate opens only after all that; claims of others are left alone; nothing is left.
"""

from hashlib import sha256
from typing import TYPE_CHECKING

from simulation.kube.api_server import ApiServer
from simulation.kube.claims import FINALIZER, ClaimServer, allocated_on, is_reserved
from simulation.kube.objects import Json, uid_of

from sluice.contracts.messages import Bound

if TYPE_CHECKING:
    from simulation.judges.judge import Judge

DRIVER = "gpu.sluice.dev"
BYSTANDER = "somebody-elses"


class ClaimsJudge:
    """Observes what Sluice writes to claims."""

    def __init__(self, judge: "Judge", api: ApiServer, claims: ClaimServer) -> None:
        self._judge = judge
        self._api = api
        self._claims = claims
        self._given: dict[tuple[str, str], None] = {}
        """Pods, and the allocations whose devices a claim was given for them, reserved for them."""
        self._owners: dict[str, str] = {}
        """The allocation and claim of each device that was ever named in a status."""
        claims.on_written.append(self._written)

    def lets_go(self, uid: str, given: Bound) -> None:
        """A pod's gate is opened with this binding."""
        if (uid, _begins(given)) not in self._given:
            self._fail(
                f"{uid} is let go with {given.allocation}, and its claim was never allocated and reserved for it"
            )

    def left(self) -> list[str]:
        """Claims that are still there when all pods were removed, but for those of others."""
        found = [each for each in self._claims.all() if each["metadata"]["name"] != BYSTANDER]
        missing = [f"{uid_of(each)} is still there: {each['metadata']}, {each['status']}" for each in found]
        others = self._claims.get("lab", BYSTANDER)
        touched = others is None or others["status"] or others["metadata"].get("finalizers")
        return [*missing, *([f"the claim of others is now {others}"] if touched else [])]

    # -- inside ---------------------------------------------------------------------------------------------------

    def _fail(self, why: str) -> None:
        self._judge.fail("cluster claims", why)

    def _written(self, uid: str, step: str, before: Json | None, after: Json) -> None:
        meta, allocation = after["metadata"], after["status"].get("allocation")
        if meta["name"] == BYSTANDER:
            self._fail(f"a claim of others is written to: {step}")
        owner = next((each for each in meta.get("ownerReferences", []) if each.get("controller")), {})
        if step == "create" and (owner.get("uid") != uid or FINALIZER not in meta.get("finalizers", [])):
            self._fail(f"the claim of {uid} is made for {owner}, with {meta.get('finalizers')}")
        was = before["status"].get("allocation") if before is not None else None
        if was is not None and allocation is None:
            self._deallocated(before or {})
        if allocation is not None and was is None:
            self._allocated(uid, after)
        if allocation is not None and is_reserved(after, uid):
            for result in allocation["devices"]["results"]:
                self._given[uid, result["device"].rpartition("-")[0]] = None

    def _allocated(self, uid: str, claim: Json) -> None:
        allocation, name = claim["status"]["allocation"], uid_of(claim)
        if not is_reserved(claim, uid):
            self._fail(f"{name} is allocated and not reserved for {uid} in the same write")
        if not allocation.get("allocationTimestamp"):
            self._fail(f"{name} is allocated without a timestamp, which the scheduler could not add")
        if FINALIZER not in claim["metadata"].get("finalizers", []):
            self._fail(f"{name} is allocated without the finalizer: nothing would deallocate it")
        node = allocated_on(claim)
        for result in allocation["devices"]["results"]:
            if (result["driver"], result["pool"]) != (DRIVER, node):
                self._fail(f"{name} is allocated on {node!r}, and its device is {result}")
            device, mine = result["device"], f"{name} {result['request']}"
            if self._owners.setdefault(device, mine) != mine:
                self._fail(f"the device {device} of {self._owners[device]} is used again for {mine}")

    def _deallocated(self, claim: Json) -> None:
        for consumer in claim["status"].get("reservedFor") or []:
            pod = self._api.pod(claim["metadata"]["namespace"], consumer["name"])
            if pod is not None and uid_of(pod) == consumer["uid"] and pod["spec"].get("nodeName"):
                self._fail(f"{uid_of(claim)} is deallocated while {consumer['uid']} is on {pod['spec']['nodeName']}")


def _begins(given: Bound) -> str:
    return sha256(str(given.allocation).encode()).hexdigest()[:16]
