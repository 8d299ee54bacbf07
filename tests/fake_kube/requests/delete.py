"""Delete objects: preconditions, finalizers, grace, and namespaces with their content."""

from typing import Any

from fake_kube.calls import Call, stamp
from fake_kube.errors import Json, success
from fake_kube.kinds import pod_subresources
from fake_kube.store import Store


class Deletion:
    """What DELETE does to a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        store.listen(lambda resource, change: self._namespaces_end(resource))

    def delete(self, call: Call, obj: Json) -> Json:
        """One object goes, or is marked; the answer. Raises ApiError: 409 where a precondition does not hold."""
        resource = call.target.resource
        options = call.document() if call.body else {}
        pod_subresources.preconditions(resource.full_name, obj, options.get("preconditions"))
        grace: Any = call.parameters.get("gracePeriodSeconds", options.get("gracePeriodSeconds"))
        if call.dry_run:
            return resource.shown(obj)
        if resource.full_name == "pods":
            return pod_subresources.delete(self._store, obj, grace_s=None if grace is None else int(grace), now=stamp())
        ends_later = resource.full_name == "namespaces"
        if obj["metadata"].get("finalizers") or ends_later:
            meta = {**obj["metadata"], "deletionTimestamp": obj["metadata"].get("deletionTimestamp", stamp())}
            marked = {**obj, "metadata": {**meta, "deletionGracePeriodSeconds": 0}}
            if ends_later:
                marked["status"] = {"phase": "Terminating"}
            stored = self._store.put(resource.storage, marked)
            if ends_later:
                self._empty(stored)
            return resource.shown(stored)
        self._store.remove(resource.storage, obj)
        details = {"name": obj["metadata"]["name"], "kind": resource.plural, "uid": obj["metadata"]["uid"]}
        return success({**details, **({"group": resource.group} if resource.group else {})})

    def _empty(self, namespace: Json) -> None:
        name = namespace["metadata"]["name"]
        for storage in self._store.resources():
            for obj in self._store.listed(storage, name):
                if storage == "pods":
                    pod_subresources.delete(self._store, obj, grace_s=None, now=stamp())
                else:
                    self._store.remove(storage, obj)
        self._namespaces_end("pods")

    def _namespaces_end(self, resource: str) -> None:
        # A namespace ends when its last pod has: that is what deleting one waits for.
        if resource == "pods":
            for namespace in self._store.listed("namespaces"):
                name = namespace["metadata"]["name"]
                if namespace["metadata"].get("deletionTimestamp") and not self._store.listed("pods", name):
                    self._store.remove("namespaces", namespace)
