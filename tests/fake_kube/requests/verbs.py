"""Carry out an authorised request: create, get, update, patch, delete, and subresources; a code and a body."""

from collections.abc import Callable

from fake_kube import rbac
from fake_kube.admission import Admission
from fake_kube.calls import Answer, Call, stamp
from fake_kube.errors import ApiError, Fault, Json, conflict, invalid, modified, no_such_page, not_found, success
from fake_kube.kinds import events, pod_defaults, pod_subresources, pod_updates, resource_claims
from fake_kube.rbac import Access, Wish
from fake_kube.requests import metadata, patch_body
from fake_kube.requests.create import Creation
from fake_kube.requests.delete import Deletion
from fake_kube.requests.patch_formats import clone
from fake_kube.requests.watch import Lister, Query
from fake_kube.resource_types import Target
from fake_kube.store import Store
from fake_kube.webhooks import Asked

MAX_ATTEMPTS = 5
"""How often an update is retried when the object changed during a webhook's call, as in a real server; then 409."""


class Verbs:
    """The server's verbs over its store."""

    def __init__(self, store: Store, rights: Access, admission: Admission, lister: Lister) -> None:
        self._store, self._rights, self._admission, self._lister = store, rights, admission, lister
        self._patcher = patch_body.Patcher()
        self._creation, self._deletion = Creation(store, admission), Deletion(store)

    async def answer(self, call: Call) -> Answer:
        """Carry out a request that is no watch. Raises ApiError: the server's refusal."""
        target = call.target
        if target.subresource and target.subresource not in self._subresources(target):
            raise no_such_page()
        if target.verb == "list":
            query = Query.parse(target.resource, target.namespace, "", call.parameters)
            return Answer(200, self._lister.answer(query))
        if target.verb == "get":
            return Answer(200, target.resource.shown(self._live(target)))
        if target.verb == "create":
            return await self._create_any(call)
        if target.verb == "update":
            return await self._update(call, lambda live: self._put(live, call))
        if target.verb == "patch":
            return await self._patch(call)
        if target.verb == "delete":
            return Answer(200, self._deletion.delete(call, self._live(target)))
        if target.verb == "deletecollection":
            query = Query.parse(target.resource, target.namespace, "", call.parameters)
            gone = [obj for obj in self._store.listed(target.resource.storage, target.namespace) if query.matches(obj)]
            for obj in gone:
                self._deletion.delete(call, obj)
            return Answer(200, success())
        raise ApiError(405, "the server does not allow this method on the requested resource")

    # -- reading ----------------------------------------------------------------------------------------------------

    def _live(self, target: Target) -> Json:
        found = self._store.get(target.resource.storage, target.namespace, target.name)
        if found is None:
            raise not_found(target.resource.full_name, target.name)
        return found

    @staticmethod
    def _subresources(target: Target) -> tuple[str, ...]:
        own = {"pods": ("binding", "eviction", "ephemeralcontainers"), "serviceaccounts": ("token",)}
        if target.verb in {"get", "list", "delete"}:
            return ("status",) if target.resource.status else ()
        return (*own.get(target.resource.full_name, ()), *(("status",) if target.resource.status else ()))

    # -- creating ---------------------------------------------------------------------------------------------------

    async def _create_any(self, call: Call) -> Answer:
        target = call.target
        if target.path == "pods/binding":
            body = call.document()
            # Policies and rights on bindings see the Binding; what is stored is the pod.
            if not call.dry_run:
                pod_subresources.bind(self._store, target.namespace, target.name, body)
            return Answer(201, success(code=201))
        if target.path == "pods/eviction":
            body = call.document()
            dry = call.dry_run or bool((body.get("deleteOptions") or {}).get("dryRun"))
            return Answer(
                201, pod_subresources.evict(self._store, target.namespace, target.name, body, now=stamp(), dry_run=dry)
            )
        if target.path == "serviceaccounts/token":
            self._live(target)
            token = self._rights.token(rbac.service_account(target.namespace, target.name))
            body = {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "metadata": {}}
            return Answer(201, {**body, "status": {"token": token, "expirationTimestamp": "2099-01-01T00:00:00Z"}})
        if target.name:
            raise ApiError(405, "the server does not allow this method on the requested resource")
        return await self._creation.create(call, call.document())

    # -- changing ---------------------------------------------------------------------------------------------------

    @staticmethod
    def _put(live: Json, call: Call) -> Json:
        body = call.document()
        named = (body.get("metadata") or {}).get("name", call.target.name)
        if named != call.target.name:
            raise ApiError(
                400, f"the name of the object ({named}) does not match the name on the URL ({call.target.name})"
            )
        wanted = {**body, "kind": live["kind"], "apiVersion": live["apiVersion"]}
        return clone(events.from_core(wanted) if call.target.resource.stored_as else wanted)

    async def _patch(self, call: Call) -> Answer:
        target, resource = call.target, call.target.resource
        patch_body.check_type(call.kind, resource)
        patch = patch_body.read(call.kind, call.body)
        manager = call.parameters.get("fieldManager", "")
        force = call.parameters.get("force", "") in {"true", "1"}
        applied = patch if call.kind == patch_body.APPLY and isinstance(patch, dict) else None
        if (
            applied is not None
            and self._store.get(resource.storage, target.namespace, target.name) is None
            and not target.subresource
        ):
            return await self._apply_to_nothing(call, applied, manager)

        def change(live: Json) -> Json:
            uid = ((applied or {}).get("metadata") or {}).get("uid")
            if uid and uid != live["metadata"]["uid"]:
                other = live["metadata"]["uid"]
                why = f"uid mismatch: the provided object specified uid {uid}, and the existing object has uid {other}"
                raise conflict(resource.full_name, target.name, why)
            shown = resource.shown(live)
            part = target.subresource
            found = self._patcher.patched(call.kind, shown, patch, part=part, manager=manager, force=force)
            if not isinstance(found, dict) or not isinstance(found.get("metadata"), dict):
                raise ApiError(422, "the server rejected our request due to an error in our request", details={})
            return events.from_core(found) if resource.stored_as else found

        return await self._update(call, change)

    async def _apply_to_nothing(self, call: Call, applied: Json, manager: str) -> Answer:
        target, resource = call.target, call.target.resource
        meta = applied.get("metadata") or {}
        if meta.get("uid"):
            why = f"uid mismatch: the provided object specified uid {meta['uid']}, and no existing object was found"
            raise conflict(resource.full_name, target.name, why)
        if not manager:
            self._patcher.patched(patch_body.APPLY, {"metadata": {}}, applied, part="", manager="", force=False)
        self._rights.check(call.user, Wish("create", resource.group, resource.plural, target.namespace, target.name))
        answer = await self._creation.create(call, {**applied, "metadata": {**meta, "name": target.name}})
        if not call.dry_run:
            self._patcher.created(answer.body["metadata"]["uid"], applied, manager)
        return answer

    async def _update(self, call: Call, change: Callable[[Json], Json]) -> Answer:
        target, resource = call.target, call.target.resource
        for _ in range(MAX_ATTEMPTS):
            live = self._live(target)
            wanted = clone(change(live))
            version = wanted["metadata"].get("resourceVersion")
            if version and version != live["metadata"]["resourceVersion"]:
                raise modified(resource.full_name, target.name)
            wanted["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"]
            faults = metadata.keep_metadata(live, wanted)
            wanted = self._part(target, live, wanted)
            asked = Asked(target, "UPDATE", wanted, live, call.user, call.dry_run)
            wanted, warnings = await self._admission.mutate(asked)
            wanted = self._part(target, live, wanted)
            faults += metadata.metadata(wanted) + self._may_bind(call, live, wanted)
            faults += self._changed(target, live, wanted)
            if faults:
                raise invalid(resource.full_kind, target.name, faults)
            if self._store.get(resource.storage, target.namespace, target.name) is not live:
                continue  # it changed while a webhook thought: decide again on what it is now
            if _substance(wanted) != _substance(live) and "generation" in live["metadata"]:
                wanted["metadata"]["generation"] = live["metadata"]["generation"] + 1
            if call.dry_run:
                return Answer(200, resource.shown(wanted), warnings)
            return Answer(200, resource.shown(self._stored(resource.storage, wanted)), warnings)
        raise modified(resource.full_name, target.name)

    def _stored(self, storage: str, wanted: Json) -> Json:
        stored = self._store.put(storage, wanted)
        meta = stored["metadata"]
        if meta.get("deletionTimestamp") and not meta.get("finalizers") and not meta.get("deletionGracePeriodSeconds"):
            return self._store.remove(storage, stored)
        return stored

    @staticmethod
    def _part(target: Target, live: Json, wanted: Json) -> Json:
        """What of a wanted object a request to this (sub)resource may touch at all; the rest is dropped in silence."""
        resource = target.resource
        if target.subresource == "status":
            # Of a claim only the status is taken (metav1.ResetObjectMetaForStatus); pods take metadata as well.
            apart = resource.custom or resource.full_name == resource_claims.CLAIMS
            meta = live["metadata"] if apart else wanted["metadata"]
            return {**live, "metadata": meta, "status": wanted.get("status") or {}}
        if target.subresource == "ephemeralcontainers":
            spec = {
                **live["spec"],
                "ephemeralContainers": clone((wanted.get("spec") or {}).get("ephemeralContainers") or []),
            }
            for container in spec["ephemeralContainers"]:
                pod_defaults.fill_container(container)
            return {**live, "spec": spec}
        if resource.status:
            kept = {key: value for key, value in wanted.items() if key != "status"}
            return {**kept, **({"status": live["status"]} if "status" in live else {})}
        return wanted

    def _may_bind(self, call: Call, live: Json, wanted: Json) -> list[Fault]:
        """Allocation and reservations of a claim take a right of their own, in the whole cluster (from 1.36)."""
        if call.target.path != "resourceclaims/status" or not resource_claims.binds(live, wanted):
            return []
        wish = Wish(call.target.verb, call.target.resource.group, "resourceclaims/binding")
        if self._rights.allowed(call.user, wish):
            return []
        why = f'resource="resourceclaims/binding", verb="{wish.verb}" permission'
        text = (
            f"changing status.allocation or status.reservedFor requires {why}: {self._rights.refusal(call.user, wish)}"
        )
        return [Fault("status.allocation", "Forbidden", text)]

    @staticmethod
    def _changed(target: Target, live: Json, wanted: Json) -> list[Fault]:
        if target.path == "pods":
            return pod_updates.main(live, wanted)
        if target.path == "pods/status":
            return pod_updates.status(wanted)
        if target.path == "pods/ephemeralcontainers":
            return pod_updates.ephemeral(live, wanted)
        if target.path == "resourceclaims":
            return resource_claims.main(live, wanted)
        if target.path == "resourceclaims/status":
            return resource_claims.status(live, wanted)
        if target.resource.full_name == "events.events.k8s.io":
            return events.changed(live, wanted)
        return []


def _substance(obj: Json) -> Json:
    return {key: value for key, value in obj.items() if key not in {"metadata", "status"}}
