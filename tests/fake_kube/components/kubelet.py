"""A fake kubelet without processes: starts containers or shows why not, and ends them in kubelet v1.36.2's order."""

from collections import Counter

from fake_kube.calls import stamp
from fake_kube.components import containers, scheduler_claims
from fake_kube.errors import Json
from fake_kube.kinds import pod_defaults, pod_subresources
from fake_kube.requests.patch_formats import clone
from fake_kube.store import Key, Store

HELD = "CreateContainerConfigError"
LOST = 137
"""Exit code of a container that is not there when its pod ends."""


class Kubelet:
    """The kubelets of all nodes of one server."""

    def __init__(self, store: Store) -> None:
        """Start without containers."""
        self._store = store
        self.lingering: set[Key] = set()
        self.tickets: containers.Ready = lambda uid, path: True
        self.running: dict[str, dict[str, dict[str, str]]] = {}
        self.starts: Counter[tuple[str, str]] = Counter()

    def run(self, pod: Json) -> None:
        """Start what can be started, and write the pod's status. Claims are prepared before its sandbox is made."""
        if not self._prepares(pod):
            return
        wanted, now = clone(pod), stamp()
        status, uid = wanted["status"], pod["metadata"]["uid"]
        alive = self.running.setdefault(uid, {})
        init, blocked = [], False
        for container in pod["spec"].get("initContainers") or []:
            native = container.get("restartPolicy") == "Always"
            state = self._container(container, pod, "initContainerStatuses", blocked=blocked, ends=not native)
            blocked = blocked or not (
                "running" in state["state"] or state["state"].get("terminated", {}).get("exitCode") == 0
            )
            init.append(state)
        main = [
            self._container(container, pod, "containerStatuses", blocked=blocked, ends=False)
            for container in pod["spec"]["containers"]
        ]
        if not alive:
            self.running.pop(uid, None)
        up = all("running" in each["state"] for each in main)
        if init:
            status["initContainerStatuses"] = init
        status["containerStatuses"] = main
        status |= {"startTime": status.get("startTime", now), "hostIP": "127.0.0.1", "podIP": "127.0.0.1"}
        status["phase"] = (
            "Running" if any("running" in each["state"] for each in main) or status["phase"] == "Running" else "Pending"
        )
        for kind, true in (("Initialized", not blocked), ("ContainersReady", up), ("Ready", up)):
            pod_defaults.set_condition(wanted, pod_defaults.condition(kind, "True" if true else "False", now))
        self._store.put("pods", wanted)

    def _container(self, container: Json, pod: Json, kind: str, *, blocked: bool, ends: bool) -> Json:
        uid, name, now = pod["metadata"]["uid"], container["name"], stamp()
        known = next((each for each in pod["status"].get(kind) or [] if each["name"] == name), None)
        if known is not None and ("running" in known["state"] or "terminated" in known["state"]):
            return known
        status = {
            "name": name,
            "image": container["image"],
            "imageID": "",
            "restartCount": (known or {}).get("restartCount", 0),
        }
        if known is not None and "lastState" in known:
            status["lastState"] = known["lastState"]
        if blocked:
            return {**status, "ready": False, "started": False, "state": {"waiting": {"reason": "PodInitializing"}}}
        try:
            found, _ = containers.start(container, pod, self.tickets)
        except containers.HeldError as held:
            waiting = {"reason": HELD, "message": str(held)}
            return {**status, "ready": False, "started": False, "state": {"waiting": waiting}}
        self.starts[uid, name] += 1
        if ends:
            over = {"exitCode": 0, "reason": "Completed", "startedAt": now, "finishedAt": now}
            return {**status, "ready": True, "started": False, "state": {"terminated": over}}
        self.running[uid][name] = found
        return {**status, "ready": True, "started": True, "state": {"running": {"startedAt": now}}}

    def _prepares(self, pod: Json) -> bool:
        if not pod["spec"].get("resourceClaims") or pod["metadata"]["uid"] in self.running:
            return True
        return scheduler_claims.ready(pod, self._store)

    def finish(self, key: Key, code: int) -> None:
        """All containers of a pod end by themselves with this exit code."""
        pod = self._store.get("pods", *key)
        assert pod is not None, f"no pod {key}"
        wanted = clone(pod)
        policy = pod["spec"]["restartPolicy"]
        again = policy == "Always" or (policy == "OnFailure" and code != 0)
        self.running.pop(pod["metadata"]["uid"], None)
        for each in wanted["status"].get("containerStatuses") or []:
            over = _over(each, code)
            if again:
                waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
                each |= {"state": waiting, "lastState": {"terminated": over}, "restartCount": each["restartCount"] + 1}
            else:
                each["state"] = {"terminated": over}
            each |= {"ready": False, "started": False}
        if not again:
            wanted["status"]["phase"] = "Succeeded" if code == 0 else "Failed"
            for each in wanted["status"].get("initContainerStatuses") or []:
                if "running" in each["state"]:
                    each |= {"state": {"terminated": _over(each, 0)}, "ready": False, "started": False}
        for kind in ("ContainersReady", "Ready"):
            pod_defaults.set_condition(wanted, pod_defaults.condition(kind, "False", stamp()))
        self._store.put("pods", wanted)

    def terminate(self, pod: Json) -> None:
        """Stop a terminating pod's containers; then remove the object, unless a finalizer holds it."""
        meta, store = pod["metadata"], self._store
        key = (meta["namespace"], meta["name"])
        if key in self.lingering:
            return
        self.running.pop(meta["uid"], None)
        ended = clone(pod)
        for kind in ("initContainerStatuses", "containerStatuses"):
            for each in ended["status"].get(kind) or []:
                if "terminated" not in each["state"]:
                    ran = "running" in each["state"]
                    each |= {"state": {"terminated": _over(each, 0 if ran else LOST)}, "ready": False, "started": False}
        if ended["status"].get("phase") not in pod_subresources.ENDED:
            codes = [each["state"]["terminated"]["exitCode"] for each in ended["status"].get("containerStatuses") or []]
            ended["status"]["phase"] = "Succeeded" if codes and not any(codes) else "Failed"
        pod = store.put("pods", ended)
        last = clone(pod)
        last["metadata"]["deletionGracePeriodSeconds"] = 0
        pod_subresources.drop(store, "pods", store.put("pods", last))


def _over(status: Json, code: int) -> Json:
    started = (status["state"].get("running") or {}).get("startedAt", stamp())
    reason = "Completed" if code == 0 else "Error"
    return {"exitCode": code, "reason": reason, "startedAt": started, "finishedAt": stamp()}
