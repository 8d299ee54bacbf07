"""ResourceClaims of a simulated cluster: what its API server accepts, and the controller that ends them.

The controller's rules are those of pkg/controller/resourceclaim (kubernetes v1.37.2): a reservation ends with its pod;
an allocation with its last reservation, where the claim has the finalizer; a claim with the pod that it was made for.
"""

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from fake_kube.errors import ApiError
from fake_kube.kinds import resource_claims
from fake_kube.requests.patch_formats import json_patch, merge_patch
from simulation.kube.api_server import DONE, ApiServer, Change, RefusedError
from simulation.kube.objects import Json, is_dying, uid_of

FINALIZER = "resource.kubernetes.io/delete-protection"
CONTROLLER_S = (0.02, 1.0)
LATE, LATE_S = 0.1, 6.0
"""So often the controller is late, and by how much."""
Written = Callable[[str, str, Json | None, Json], None]


class ClaimServer:
    """What Sluice writes to claims. `on_written` gets the pod's UID, which step, the claim before and after."""

    def __init__(self, api: ApiServer) -> None:
        self._api = api
        self._made = 0
        self.on_written: list[Written] = []

    def get(self, namespace: str, name: str) -> Json | None:
        return self._api.objects.get(("ResourceClaim", namespace, name))

    def all(self) -> list[Json]:
        return [each for (kind, _, _), each in self._api.objects.items() if kind == "ResourceClaim"]

    def create(self, uid: str, body: Mapping[str, Any]) -> Json:
        """A new claim. Raises RefusedError."""
        self._asked(uid, "create")
        return self._written(uid, "create", None, self.make(body))

    def make(self, body: Mapping[str, Any]) -> Json:
        """Store a new claim, of Sluice or of others. Raises RefusedError."""
        self._made += 1
        meta = {**body["metadata"], "uid": f"claim-u{self._made}"}
        claim = {"kind": "ResourceClaim", "metadata": meta, "spec": body["spec"], "status": {}}
        _refuse(resource_claims.new_claim(claim))
        self._api.create(claim)
        return self._api.objects["ResourceClaim", meta["namespace"], meta["name"]]

    def protect(self, uid: str, namespace: str, name: str, operations: Sequence[Mapping[str, Any]]) -> Json:
        """A JSON patch of the metadata. Raises RefusedError."""
        self._asked(uid, "protect")
        before = self._found(namespace, name)
        try:
            after = json_patch(before, list(operations))
        except ApiError as error:
            raise RefusedError(422, str(error)) from error
        _check_version(before, after["metadata"])
        _refuse(resource_claims.main(before, after))
        return self._written(uid, "protect", before, self._api.write(before, metadata=after["metadata"]))

    def status(self, uid: str, step: str, namespace: str, name: str, body: Mapping[str, Any]) -> Json:
        """A merge into the status; an allocation gets the time, as Sluice's shell adds it. Raises RefusedError."""
        self._asked(uid, step)
        before = self._found(namespace, name)
        _check_version(before, body["metadata"])
        told = dict(body["status"])
        if told.get("allocation") is not None:
            told["allocation"] = {**told["allocation"], "allocationTimestamp": f"t{self._api.clockwork.now:.3f}"}
        after = {**before, "status": merge_patch(before["status"], told)}
        _refuse(resource_claims.status(before, after))
        return self._written(uid, step, before, self.put(before, after["status"]))

    def put(self, before: Json, status: Json) -> Json:
        return self._api.replace(before, {**before, "status": status})

    # -- inside ---------------------------------------------------------------------------------------------------

    def _asked(self, uid: str, step: str) -> None:
        for hear in self._api.on_asked if uid else ():
            hear(uid, step)
        self._api.refuse_if_busy()

    def _found(self, namespace: str, name: str) -> Json:
        found = self.get(namespace, name)
        if found is None:
            raise RefusedError(404, f'resourceclaims "{name}" not found')
        return found

    def _written(self, uid: str, step: str, before: Json | None, after: Json) -> Json:
        for hear in self.on_written:
            hear(uid, step, before, after)
        return after


class ClaimController:
    """The claim controller and the garbage collector of a cluster. Each claim is looked at some time after a change."""

    def __init__(self, server: ClaimServer, api: ApiServer, dice: Random) -> None:
        self._server = server
        self._api = api
        self._dice = dice
        self._due: dict[tuple[str, str], None] = {}
        api.on_change.append(self._hear)

    def _hear(self, change: Change) -> None:
        found = change.after or change.before or {}
        namespace = found["metadata"].get("namespace", "")
        if found["kind"] == "ResourceClaim":
            self._look_at(namespace, found["metadata"]["name"])
        elif found["kind"] == "Pod":
            for name in claim_names(found):
                self._look_at(namespace, name)

    def _look_at(self, namespace: str, name: str) -> None:
        key = namespace, name
        if key in self._due:
            return
        self._due[key] = None
        late = self._dice.random() < LATE
        self._api.clockwork.after(LATE_S if late else self._dice.uniform(*CONTROLLER_S), lambda: self._sync(*key))

    def _sync(self, namespace: str, name: str) -> None:
        self._due.pop((namespace, name), None)
        claim = self._server.get(namespace, name)
        if claim is None:
            return
        status, protected = claim["status"], FINALIZER in claim["metadata"].get("finalizers", [])
        reserved = status.get("reservedFor") or []
        left = [each for each in reserved if self._uses(namespace, each)]
        if len(left) < len(reserved):
            status = {key: text for key, text in status.items() if key != "reservedFor"}
            status |= {"reservedFor": left} if left else {}
            if not left and protected:
                status.pop("allocation", None)
            claim = self._server.put(claim, status)
        elif protected and is_dying(claim) and not left:
            claim = self._server.put(claim, {key: text for key, text in status.items() if key != "allocation"})
        ends = not left and protected and not claim["status"].get("allocation")
        if ends and (is_dying(claim) or len(left) < len(reserved)):
            claim = self._unprotect(claim)
        if not left and self._server.get(namespace, name) is not None:
            self._delete_left(claim)

    def _uses(self, namespace: str, consumer: Json) -> bool:
        pod = self._api.pod(namespace, consumer["name"])
        return pod is not None and uid_of(pod) == consumer["uid"] and not _is_done(pod)

    def _unprotect(self, claim: Json) -> Json:
        kept = [each for each in claim["metadata"]["finalizers"] if each != FINALIZER]
        claim = self._api.write(claim, metadata={"finalizers": kept})
        if is_dying(claim) and not kept:
            self._api.drop(claim)
        return claim

    def _delete_left(self, claim: Json) -> None:
        """An unreserved claim of a pod that is done or gone."""
        meta = claim["metadata"]
        owner = next((each for each in meta.get("ownerReferences", []) if each.get("controller")), None)
        if owner is None or is_dying(claim):
            return
        pod = self._api.pod(meta["namespace"], owner["name"])
        if pod is None or uid_of(pod) != owner["uid"] or _is_done(pod):
            self._api.mark_deleted(claim, 0)


class ClaimScheduler:
    """What the scheduler and a kubelet look for in the claims of a pod."""

    def __init__(self, server: ClaimServer) -> None:
        self._server = server

    def may_place(self, pod: Json, node: str) -> bool:
        """Whether its claims let a pod be on a node. What is allocated gets its reservation back, where it lost it."""
        for name in claim_names(pod):
            claim = self._server.get(pod["metadata"]["namespace"], name)
            if claim is None or is_dying(claim) or allocated_on(claim) != node:
                return False
        for name in claim_names(pod):
            claim = self._server.get(pod["metadata"]["namespace"], name)
            if is_reserved(claim, uid_of(pod)):
                continue
            if not claim["status"]["allocation"].get("allocationTimestamp"):
                return False  # it would add one, and that is refused for ever
            consumer = {"resource": "pods", "name": pod["metadata"]["name"], "uid": uid_of(pod)}
            reserved = [*(claim["status"].get("reservedFor") or []), consumer]
            self._server.put(claim, {**claim["status"], "reservedFor": reserved})
        return True

    def to_prepare(self, pod: Json) -> str:
        """The UID of the claim that a pod's kubelet prepares; empty while it may not use it."""
        for name in claim_names(pod):
            claim = self._server.get(pod["metadata"]["namespace"], name)
            if claim is not None and claim["status"].get("allocation") and is_reserved(claim, uid_of(pod)):
                return uid_of(claim)
        return ""


def claim_names(pod: Json) -> list[str]:
    return [str(each["resourceClaimName"]) for each in pod["spec"].get("resourceClaims", [])]


def is_reserved(claim: Json, uid: str) -> bool:
    """Whether a pod may use a claim."""
    return any(each["uid"] == uid for each in claim["status"].get("reservedFor") or [])


def allocated_on(claim: Json) -> str:
    """The one node that an allocation is for; empty where there is none, or the selector is another one."""
    selector = (claim["status"].get("allocation") or {}).get("nodeSelector", {})
    terms = selector.get("nodeSelectorTerms", [])
    fields = [field for term in terms for field in term.get("matchFields", [])]
    if len(terms) != 1 or len(fields) != 1 or fields[0]["key"] != "metadata.name" or len(fields[0]["values"]) != 1:
        return ""
    return str(fields[0]["values"][0])


def _is_done(pod: Json) -> bool:
    """As in the controller: it ended, or is being deleted without ever having had a node."""
    return pod["status"].get("phase") in DONE or (is_dying(pod) and not pod["spec"].get("nodeName"))


def _check_version(before: Json, meta: Mapping[str, Any]) -> None:
    if meta.get("uid", uid_of(before)) != uid_of(before):
        raise RefusedError(409, "the UID in the precondition is another one")
    if meta.get("resourceVersion", "") not in {"", before["metadata"]["resourceVersion"]}:
        raise RefusedError(409, "the object has been modified; please apply your changes to the latest version")


def _refuse(faults: Sequence[Any]) -> None:
    if faults:
        raise RefusedError(422, "; ".join(str(fault) for fault in faults))
