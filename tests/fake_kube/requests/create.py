"""Create objects: identity, admission, limits, validation, and the fields that the server sets."""

import secrets
import uuid

from fake_kube.admission import Admission
from fake_kube.calls import Answer, Call, stamp
from fake_kube.errors import ApiError, Fault, Json, already_exists, forbidden, invalid, not_found
from fake_kube.kinds import (
    crds,
    events,
    limits_and_quotas,
    pod_creation,
    pod_defaults,
    resource_claims,
    webhook_configurations,
)
from fake_kube.requests import metadata
from fake_kube.requests.patch_formats import clone
from fake_kube.resource_types import Resource, Target
from fake_kube.store import Store
from fake_kube.webhooks import Asked

ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
"""Of generated names (k8s.io/apimachinery/pkg/util/rand)."""
MAX_BASE = 58
"""Characters of a generateName that are kept, so that the whole is no longer than a label."""


class Creation:
    """What POST (and an apply of something absent) does to a store."""

    def __init__(self, store: Store, admission: Admission) -> None:
        self._store, self._admission = store, admission

    async def create(self, call: Call, body: Json) -> Answer:
        """A new object of the call's resource. Raises ApiError: the server's refusal, or a webhook's."""
        resource = call.target.resource
        obj = self._identified(call.target, body)
        if resource.status and resource.plural != "nodes":
            obj.pop("status", None)
        self._place(call.target)
        asked = Asked(call.target, "CREATE", obj, None, call.user, call.dry_run)
        obj, warnings = await self._admission.mutate(asked)
        meta = obj["metadata"]
        if not meta.get("name"):
            if not meta.get("generateName"):
                raise invalid(
                    resource.full_kind,
                    "",
                    [Fault("metadata.name", "Required value", "name or generateName is required")],
                )
            meta["name"] = meta["generateName"][:MAX_BASE] + "".join(secrets.choice(ALPHABET) for _ in range(5))
        self._limits(resource.full_name, obj)
        meta |= {"uid": str(uuid.uuid4()), "creationTimestamp": stamp()}
        if "spec" in obj or resource.custom:
            meta["generation"] = 1
        faults = metadata.metadata(obj) + self._finished(resource, obj)
        if faults:
            raise invalid(resource.full_kind, meta["name"], faults)
        if self._store.get(resource.storage, meta.get("namespace", ""), meta["name"]) is not None:
            raise already_exists(resource.full_name, meta["name"])
        stored = obj if call.dry_run else self._store.put(resource.storage, obj)
        return Answer(201, resource.shown(stored), warnings)

    @staticmethod
    def _finished(resource: Resource, obj: Json) -> list[Fault]:
        """Write what only the server writes into one kind, and say what is wrong with it."""
        if resource.full_name == "pods":
            pod_defaults.begin(obj, stamp())
            return pod_creation.new_pod(obj)
        if resource.storage == events.CORE_EVENTS.storage:
            return events.new_event(obj) if resource.group else events.core_event(obj)
        if resource.full_name == crds.DEFINITIONS:
            faults = crds.new_definition(obj)
            if not faults:
                crds.establish(obj, stamp())
            return faults
        if resource.full_name == webhook_configurations.CONFIGURATIONS:
            return webhook_configurations.new_configuration(obj)
        if resource.full_name == resource_claims.CLAIMS:
            obj["status"] = {}
            return resource_claims.new_claim(obj)
        if resource.full_name == resource_claims.TEMPLATES:
            return resource_claims.new_template(obj)
        if resource.full_name == "namespaces":
            meta = obj["metadata"]
            meta["labels"] = {**(meta.get("labels") or {}), "kubernetes.io/metadata.name": meta["name"]}
            obj["status"] = {"phase": "Active"}
        return []

    def _identified(self, target: Target, body: Json) -> Json:
        resource = target.resource
        kind, version = body.get("kind", resource.kind), body.get("apiVersion", resource.api_version)
        if (kind, version) != (resource.kind, resource.api_version):
            why = f"{kind} in version {version} cannot be handled as a {resource.kind}"
            raise ApiError(
                400, f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: {why}'
            )
        meta = dict(body.get("metadata") or {})
        if meta.get("resourceVersion"):
            raise ApiError(500, "resourceVersion should not be set on objects to be created")
        for key in ("uid", "creationTimestamp", "managedFields", "resourceVersion", *metadata.SERVERS_OWN):
            meta.pop(key, None)
        for key in ("labels", "annotations", "finalizers", "ownerReferences"):
            if not meta.get(key):
                meta.pop(key, None)
        if resource.namespaced:
            if meta.get("namespace", target.namespace) != target.namespace:
                raise ApiError(
                    400, "the namespace of the provided object does not match the namespace sent on the request"
                )
            meta["namespace"] = target.namespace
        obj = clone({**body, "kind": resource.kind, "apiVersion": resource.api_version, "metadata": meta})
        return events.from_core(obj) if resource.stored_as else obj

    def _place(self, target: Target) -> None:
        if not target.resource.namespaced:
            return
        namespace = self._store.get("namespaces", "", target.namespace)
        if namespace is None:
            raise not_found("namespaces", target.namespace)
        if namespace["metadata"].get("deletionTimestamp"):
            why = f"unable to create new content in namespace {target.namespace} because it is being terminated"
            raise forbidden(target.resource.full_name, "", why)

    def _limits(self, resource: str, obj: Json) -> None:
        if resource == "pods":
            limits_and_quotas.check_ranges(obj, self._store.listed("limitranges", obj["metadata"]["namespace"]))
