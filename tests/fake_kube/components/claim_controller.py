"""
The controller of ResourceClaims, and the garbage collector for claims of pods that are gone.

As in pkg/controller/resourceclaim/controller.go of kubernetes v1.37.2 (syncPod, syncClaim): also for gated pods
it makes the claims of templates; it takes reservations of ended pods away, deallocates a claim whose last reservation
ended only with its finalizer, and deletes a generated claim of a pod that is done.
"""

import secrets
import uuid
from typing import TYPE_CHECKING

from fake_kube.calls import stamp
from fake_kube.errors import Json
from fake_kube.kinds import pod_subresources
from fake_kube.kinds.resource_claims import CLAIMS, TEMPLATES
from fake_kube.requests.create import ALPHABET
from fake_kube.requests.patch_formats import clone
from fake_kube.store import Change, Key, Store

if TYPE_CHECKING:
    from fake_kube.server import FakeKube

FINALIZER = "resource.kubernetes.io/delete-protection"
POD_CLAIM = "resource.kubernetes.io/pod-claim-name"
MAX_BASE = 57


class ClaimController:
    """The controller of one server; works in the server's loop, after each change of pods, templates and claims."""

    def __init__(self, server: "FakeKube") -> None:
        self._server = server
        self._dirty: dict[tuple[str, Key], None] = {}
        self._planned = False
        self.running = True
        """Whether there is a controller; a test switches it off by `pause`."""

    def start(self) -> None:
        self._server.store.listen(self._changed)

    def pause(self, *, on: bool = True) -> None:
        """Stop it, or let it catch up."""

        def switch() -> None:
            self.running = not on
            for resource in ("pods", CLAIMS):
                for each in self._server.store.listed(resource):
                    self._mark(resource, each)

        self._server.call(switch)

    def _changed(self, resource: str, change: Change) -> None:
        store, meta = self._server.store, change.last["metadata"]
        if resource == CLAIMS:
            self._mark(CLAIMS, change.last)
            for pod in store.listed("pods", meta["namespace"]):
                if pod["spec"].get("resourceClaims"):
                    self._mark("pods", pod)
        elif resource == "pods" and change.last["spec"].get("resourceClaims"):
            self._mark("pods", change.last)
            for claim in store.listed(CLAIMS, meta["namespace"]):
                self._mark(CLAIMS, claim)
        elif resource == TEMPLATES:
            for pod in store.listed("pods", meta["namespace"]):
                if pod["spec"].get("resourceClaims"):
                    self._mark("pods", pod)

    def _mark(self, resource: str, obj: Json) -> None:
        self._dirty[resource, (obj["metadata"]["namespace"], obj["metadata"]["name"])] = None
        if not self._planned:
            self._planned = True
            self._server.loop.call_soon(self._work)

    def _work(self) -> None:
        dirty, self._dirty, self._planned = self._dirty, {}, False
        for resource, key in dirty if self.running else ():
            found = self._server.store.get(resource, *key)
            if found is None:
                continue
            if resource == "pods":
                self._pod(found)
            else:
                self._claim(found)

    # -- pods -------------------------------------------------------------------------------------------------------

    def _pod(self, pod: Json) -> None:
        if pod["metadata"].get("deletionTimestamp"):
            return
        store, namespace = self._server.store, pod["metadata"]["namespace"]
        names = claim_names(pod)
        for entry in pod["spec"].get("resourceClaims") or []:
            template = entry.get("resourceClaimTemplateName")
            known = names.get(entry["name"])
            if template and (not known or store.get(CLAIMS, namespace, known) is None):
                made = self._from_template(pod, entry["name"], store.get(TEMPLATES, namespace, template))
                names |= {entry["name"]: made} if made else {}
        statuses = [
            {"name": entry["name"], "resourceClaimName": names[entry["name"]]}
            for entry in pod["spec"].get("resourceClaims") or []
            if entry.get("resourceClaimTemplateName") and names.get(entry["name"])
        ]
        if statuses and pod["status"].get("resourceClaimStatuses") != statuses:
            pod = store.put("pods", {**pod, "status": {**pod["status"], "resourceClaimStatuses": statuses}})
        if pod["spec"].get("nodeName"):
            for name in names.values():
                self._reserve(pod, name)

    def _from_template(self, pod: Json, name: str, template: Json | None) -> str:
        if template is None:
            return ""
        meta, spec = pod["metadata"], template["spec"]
        base = f"{meta['name']}-{name}-"
        if len(base) > MAX_BASE:
            cut = [each[: len(each) * MAX_BASE // len(base)] for each in (meta["name"], name)]
            base = f"{cut[0]}-{cut[1]}"
        owner = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"], "controller": True}
        given = spec.get("metadata") or {}
        made = {
            "name": base + "".join(secrets.choice(ALPHABET) for _ in range(5)),
            "namespace": meta["namespace"],
            "uid": str(uuid.uuid4()),
            "creationTimestamp": stamp(),
            "annotations": {**(given.get("annotations") or {}), POD_CLAIM: name},
            "ownerReferences": [owner],
            **({"labels": given["labels"]} if given.get("labels") else {}),
        }
        claim = {"kind": "ResourceClaim", "apiVersion": "resource.k8s.io/v1", "metadata": made, "spec": spec["spec"]}
        self._server.store.put(CLAIMS, clone({**claim, "status": {}}))
        return str(made["name"])

    def _reserve(self, pod: Json, name: str) -> None:
        store, meta = self._server.store, pod["metadata"]
        claim = store.get(CLAIMS, meta["namespace"], name)
        if claim is None or not claim["status"].get("allocation") or is_reserved(claim, pod) or _is_done(pod):
            return
        reserve(store, claim, pod)

    # -- claims -----------------------------------------------------------------------------------------------------

    def _claim(self, claim: Json) -> None:
        store, meta, status = self._server.store, claim["metadata"], claim.get("status") or {}
        reserved = status.get("reservedFor") or []
        left = [each for each in reserved if each.get("resource") != "pods" or self._uses(meta["namespace"], each)]
        protected = FINALIZER in (meta.get("finalizers") or [])
        if len(left) < len(reserved):
            status = {key: value for key, value in status.items() if key != "reservedFor"}
            status |= {"reservedFor": left} if left else {}
            if not left and protected:
                status.pop("allocation", None)
            claim = store.put(CLAIMS, {**claim, "status": status})
            if protected and not status.get("allocation"):
                claim = self._unprotected(claim)
        elif protected and meta.get("deletionTimestamp") and not left:
            status = {key: value for key, value in status.items() if key != "allocation"}
            claim = self._unprotected({**claim, "status": status})
        if not left and store.get(CLAIMS, meta["namespace"], meta["name"]) is not None:
            self._delete_left(claim)

    def _uses(self, namespace: str, consumer: Json) -> bool:
        pod = self._server.store.get("pods", namespace, consumer["name"])
        return pod is not None and pod["metadata"]["uid"] == consumer["uid"] and not _is_done(pod)

    def _unprotected(self, claim: Json) -> Json:
        store = self._server.store
        kept = [each for each in claim["metadata"]["finalizers"] if each != FINALIZER]
        meta = {key: value for key, value in claim["metadata"].items() if key != "finalizers"}
        meta |= {"finalizers": kept} if kept else {}
        stored = store.put(CLAIMS, {**claim, "metadata": meta})
        return store.remove(CLAIMS, stored) if meta.get("deletionTimestamp") and not kept else stored

    def _delete_left(self, claim: Json) -> None:
        """An unreserved claim of a pod that is done, replaced, or gone (which is the garbage collector's part)."""
        store, meta = self._server.store, claim["metadata"]
        owner = next((each for each in meta.get("ownerReferences") or [] if each.get("controller")), None)
        if owner is None or owner["kind"] != "Pod" or meta.get("deletionTimestamp"):
            return
        pod = store.get("pods", meta["namespace"], owner["name"])
        if pod is not None and pod["metadata"]["uid"] == owner["uid"] and not _is_done(pod):
            return
        if meta.get("finalizers"):
            going = {**meta, "deletionTimestamp": stamp(), "deletionGracePeriodSeconds": 0}
            store.put(CLAIMS, {**claim, "metadata": going})
        else:
            store.remove(CLAIMS, claim)


def claim_names(pod: Json) -> dict[str, str]:
    """By the name in the pod, the name of each claim that is known."""
    made = {
        each["name"]: each.get("resourceClaimName", "") for each in pod["status"].get("resourceClaimStatuses") or []
    }
    return {
        entry["name"]: entry.get("resourceClaimName") or made.get(entry["name"], "")
        for entry in pod["spec"].get("resourceClaims") or []
    }


def is_reserved(claim: Json, pod: Json) -> bool:
    """Whether a pod may use a claim."""
    return any(each["uid"] == pod["metadata"]["uid"] for each in claim["status"].get("reservedFor") or [])


def reserve(store: Store, claim: Json, pod: Json) -> None:
    consumer = {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
    status = {**claim["status"], "reservedFor": [*(claim["status"].get("reservedFor") or []), consumer]}
    store.put(CLAIMS, {**claim, "status": status})


def _is_done(pod: Json) -> bool:
    """As in the controller: it ended, or is being deleted without ever having had a node."""
    ended = pod["status"].get("phase") in pod_subresources.ENDED
    return ended or bool(pod["metadata"].get("deletionTimestamp") and not pod["spec"].get("nodeName"))
