"""Subresources of pods on the store: binding, eviction, deletion with grace; each call is one atomic step."""

from fake_kube.errors import ApiError, Json, conflict, not_found, success
from fake_kube.kinds import pod_defaults
from fake_kube.requests import selectors
from fake_kube.requests.patch_formats import clone
from fake_kube.store import Store

ENDED = ("Succeeded", "Failed")
BUDGETS = "poddisruptionbudgets.policy"


def preconditions(resource: str, obj: Json, wanted: Json | None) -> None:
    """Check the uid and version that a request supposed. Raises ApiError: 409 naming what differs."""
    name, meta = obj["metadata"]["name"], obj["metadata"]
    uid, version = (wanted or {}).get("uid"), (wanted or {}).get("resourceVersion")
    rest = "The object might have been deleted and then recreated"
    if uid is not None and uid != meta["uid"]:
        why = f"the UID in the precondition ({uid}) does not match the UID in record ({meta['uid']}). {rest}"
        raise conflict(resource, name, why)
    if version is not None and version != meta["resourceVersion"]:
        record = meta["resourceVersion"]
        why = f"the ResourceVersion in the precondition ({version}) does not match that in record ({record})"
        raise conflict(resource, name, f"{why}. The object might have been modified")


def bind(store: Store, namespace: str, name: str, binding: Json) -> Json:
    """A Binding with annotations and labels. Raises ApiError: 404: no pod; 409: gated, dying or bound."""
    pod = store.get("pods", namespace, name)
    if pod is None:
        raise not_found("pods", name)
    if pod["metadata"].get("deletionTimestamp"):
        raise conflict("pods/binding", name, f"pod {name} is being deleted, cannot be assigned to a host")
    if pod["spec"].get("nodeName"):
        raise conflict("pods/binding", name, f'pod {name} is already assigned to node "{pod["spec"]["nodeName"]}"')
    if pod["spec"].get("schedulingGates"):
        raise conflict("pods/binding", name, f"pod {name} has non-empty .spec.schedulingGates")
    bound = clone(pod)
    bound["spec"]["nodeName"] = binding["target"]["name"]
    for key in ("annotations", "labels"):
        if (binding.get("metadata") or {}).get(key):
            bound["metadata"][key] = {**(bound["metadata"].get(key) or {}), **binding["metadata"][key]}
    return store.put("pods", bound)


def delete(store: Store, pod: Json, *, grace_s: int | None, now: str) -> Json:
    """Delete at once where nothing runs or no grace is left, else mark; each removal is MODIFIED first."""
    meta, spec = pod["metadata"], pod["spec"]
    grace = spec.get("terminationGracePeriodSeconds", 30) if grace_s is None else grace_s
    if not spec.get("nodeName") or pod["status"].get("phase") in ENDED:
        grace = 0
    was = meta.get("deletionGracePeriodSeconds")
    if meta.get("deletionTimestamp") and was is not None and grace >= was and grace:
        return pod  # a second deletion may only shorten the grace
    going = clone(pod)
    going["metadata"] |= {"deletionTimestamp": meta.get("deletionTimestamp", now), "deletionGracePeriodSeconds": grace}
    if not meta.get("deletionTimestamp"):
        going["metadata"]["generation"] = meta.get("generation", 1) + 1
    going = store.put("pods", going)
    return going if grace else drop(store, "pods", going)


def drop(store: Store, resource: str, obj: Json) -> Json:
    """Remove an object unless a finalizer holds it."""
    return obj if obj["metadata"].get("finalizers") else store.remove(resource, obj)


def evict(store: Store, namespace: str, name: str, eviction: Json, *, now: str, dry_run: bool) -> Json:
    """An Eviction. Raises ApiError: 404; 409: another uid; 429: a budget used up; 500: two budgets."""
    pod = store.get("pods", namespace, name)
    if pod is None:
        raise not_found("pods", name)
    options = eviction.get("deleteOptions") or {}
    preconditions("pods", pod, options.get("preconditions"))
    dying = bool(pod["metadata"].get("deletionTimestamp"))
    if not dying and pod["status"].get("phase") not in {"Pending", *ENDED}:
        _budget(store, namespace, pod)
    if dry_run:
        return success(code=201)
    if not dying:
        marked = clone(pod)
        others = [each for each in marked["status"].get("conditions") or [] if each["type"] != "DisruptionTarget"]
        why = pod_defaults.condition("DisruptionTarget", "True", now, "EvictionByEvictionAPI", "Eviction API: evicting")
        marked["status"]["conditions"] = [*others, why]
        pod = store.put("pods", marked)
    delete(store, pod, grace_s=options.get("gracePeriodSeconds"), now=now)
    return success(code=201)


def ready(pod: Json) -> bool:
    """Whether it is ready and not terminating."""
    conditions = pod["status"].get("conditions") or []
    up = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    return up and not pod["metadata"].get("deletionTimestamp")


def _budget(store: Store, namespace: str, pod: Json) -> None:
    carried = pod["metadata"].get("labels")
    budgets = [
        each for each in store.listed(BUDGETS, namespace) if selectors.selector(each["spec"].get("selector"), carried)
    ]
    if len(budgets) > 1:
        text = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        raise ApiError(500, text)
    if not budgets or not ready(pod):
        return
    spec, name = budgets[0]["spec"], budgets[0]["metadata"]["name"]
    covered = [
        each
        for each in store.listed("pods", namespace)
        if selectors.selector(spec["selector"], each["metadata"].get("labels"))
    ]
    healthy = sum(ready(each) for each in covered)
    needed = (
        _count(spec["minAvailable"], len(covered))
        if "minAvailable" in spec
        else (len(covered) - _count(spec.get("maxUnavailable", 0), len(covered)))
    )
    if healthy - 1 < needed:
        told = f"The disruption budget {name} needs {needed} healthy pods and has {healthy} currently"
        causes = [{"reason": "DisruptionBudget", "message": told}]
        text = "Cannot evict pod as it would violate the pod's disruption budget."
        raise ApiError(429, text, details={"causes": causes})


def _count(value: int | str, of: int) -> int:
    if isinstance(value, str) and value.endswith("%"):
        return -(-int(value[:-1]) * of // 100)  # rounded up, as the disruption controller does
    return int(value)
