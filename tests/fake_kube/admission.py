"""
Mutating admission: built-in defaults, webhooks, and reinvocation.

The order is a real server's: LimitRange, token volume and priority, the webhooks, then the defaults for what a webhook
changed, then the webhooks with `reinvocationPolicy: IfNeeded` for which something changed after their turn.
"""

import secrets

import aiohttp
from fake_kube import webhooks
from fake_kube.errors import Json, forbidden
from fake_kube.kinds import limits_and_quotas, pod_defaults, priority_classes
from fake_kube.requests.patch_formats import clone
from fake_kube.store import Store
from fake_kube.webhooks import Asked, Routes


class Admission:
    """The mutating half of admission."""

    def __init__(self, store: Store, routes: Routes) -> None:
        """Reads configurations, limits and runtime classes from this store."""
        self._store = store
        self._routes = routes
        self.calls: list[tuple[str, str]] = []
        """Webhook and operation of each call that was made: for tests."""

    async def mutate(self, asked: Asked) -> tuple[Json, list[str]]:
        """The object as it will be stored, and warnings. Raises ApiError: a denial or failure; 403: no RuntimeClass."""
        builtin = asked.target.path == "pods" and asked.operation == "CREATE"
        suffix = secrets.token_hex(3)[:5]
        obj = clone(asked.obj)
        if builtin:
            self._built_in(obj, suffix)
        warnings: list[str] = []
        answered: dict[str, Json] = {}
        first = obj
        for hook in webhooks.registered(self._store):
            if webhooks.applies(self._store, hook, _with(asked, obj), self._routes):
                obj, told = await self._call(hook, _with(asked, obj))
                answered[hook["name"]] = obj
                warnings += told
        if builtin and obj != first:
            obj = clone(obj)
            self._built_in(obj, suffix)
        for hook in webhooks.registered(self._store):
            # Once more, for those after whose turn something changed; one that was not called has nothing to repeat.
            if hook.get("reinvocationPolicy") != "IfNeeded" or answered.get(hook["name"], obj) == obj:
                continue
            if webhooks.applies(self._store, hook, _with(asked, obj), self._routes):
                obj, told = await self._call(hook, _with(asked, obj))
                warnings += told
        if builtin:
            obj = clone(obj)
            pod_defaults.fill(obj["spec"])
        return obj, list(dict.fromkeys(warnings))

    async def _call(self, hook: Json, asked: Asked) -> tuple[Json, list[str]]:
        self.calls.append((hook["name"], asked.operation))
        # A session for each call: a webhook that is stopped or gets another certificate is noticed at once, and its
        # connection is closed when the call ends. (`force_close` would leave the end of TLS to the loop.)
        async with aiohttp.ClientSession() as session:
            return await webhooks.call(hook, asked, self._routes, session)

    def _built_in(self, pod: Json, suffix: str) -> None:
        pod_defaults.fill(pod["spec"])
        limits_and_quotas.fill(pod, self._store.listed("limitranges", pod["metadata"]["namespace"]))
        pod_defaults.inject(pod, suffix)
        priority_classes.resolve(pod, self._store.listed("priorityclasses.scheduling.k8s.io", ""))
        self._runtime_class(pod)

    def _runtime_class(self, pod: Json) -> None:
        name = pod["spec"].get("runtimeClassName")
        if not name:
            return
        found = self._store.get("runtimeclasses.node.k8s.io", "", name)
        if found is None:
            why = f'pod rejected: RuntimeClass "{name}" not found'
            raise forbidden("pods", pod["metadata"].get("name", ""), why)
        scheduling = found.get("scheduling") or {}
        if scheduling.get("nodeSelector"):
            pod["spec"]["nodeSelector"] = {**(pod["spec"].get("nodeSelector") or {}), **scheduling["nodeSelector"]}
        for toleration in scheduling.get("tolerations") or []:
            if toleration not in pod["spec"]["tolerations"]:
                pod["spec"]["tolerations"].append(clone(toleration))
        if found.get("overhead"):
            pod["spec"]["overhead"] = clone(found["overhead"]["podFixed"])


def _with(asked: Asked, obj: Json) -> Asked:
    return Asked(asked.target, asked.operation, obj, asked.old, asked.user, asked.dry_run)
