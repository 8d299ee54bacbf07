"""The defaults that a server adds to a new pod, which webhooks see; identity and status come later. Pure."""

from fake_kube.errors import Json
from fake_kube.kinds import quantities

GATED_TEXT = "Scheduling is blocked due to non-empty scheduling gates"
TOKEN_VOLUME = "kube-api-access-"
TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
NOT_READY = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")

_SPEC: Json = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "serviceAccountName": "default",
    "serviceAccount": "default",
    "securityContext": {},
    "schedulerName": "default-scheduler",
    "enableServiceLinks": True,
}


def containers(pod: Json, *, ephemeral: bool = False) -> list[Json]:
    spec = pod["spec"]
    found = [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]
    return [*found, *(spec.get("ephemeralContainers") or [])] if ephemeral else found


def fill(spec: Json) -> None:
    """The defaults of a pod's spec, and of all its containers."""
    for key, value in _SPEC.items():
        spec.setdefault(key, dict(value) if isinstance(value, dict) else value)
    for container in [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]:
        fill_container(container)
    for volume in spec.get("volumes") or []:
        if "hostPath" in volume:
            volume["hostPath"].setdefault("type", "")


def fill_container(container: Json) -> None:
    resources = container.setdefault("resources", {})
    limits = resources.get("limits") or {}
    if limits:
        # A limit without a request is the request too: extended resources need both to be equal.
        resources["requests"] = {**limits, **(resources.get("requests") or {})}
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    tag = str(container.get("image", "")).rpartition("/")[2].partition(":")[2]
    container.setdefault("imagePullPolicy", "IfNotPresent" if tag not in {"", "latest"} else "Always")
    for each in container.get("env") or []:
        if "fieldRef" in (each.get("valueFrom") or {}):
            each["valueFrom"]["fieldRef"].setdefault("apiVersion", "v1")


def inject(pod: Json, suffix: str) -> None:
    """What built-in admission adds before webhooks: the token volume and two tolerations; `suffix` names the volume."""
    spec = pod["spec"]
    if spec.get("automountServiceAccountToken") is not False:
        known = next((v["name"] for v in spec.get("volumes") or [] if v["name"].startswith(TOKEN_VOLUME)), None)
        name = known or f"{TOKEN_VOLUME}{suffix}"
        for container in containers(pod):
            mounts = container.setdefault("volumeMounts", [])
            if all(mount.get("mountPath") != TOKEN_PATH for mount in mounts):
                mounts.append({"name": name, "readOnly": True, "mountPath": TOKEN_PATH})
        if known is None:
            token = {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}}
            spec.setdefault("volumes", []).append({"name": name, "projected": {"sources": [token], "defaultMode": 420}})
    tolerations = spec.setdefault("tolerations", [])
    for key in NOT_READY:
        if all(each.get("key") != key for each in tolerations):
            tolerations.append({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300})


def begin(pod: Json, now: str) -> None:
    """The status of a new pod. Whatever status the request carried is dropped."""
    pod["status"] = {"phase": "Pending", "qosClass": quality(pod)}
    if pod["spec"].get("schedulingGates"):
        pod["status"]["conditions"] = [condition("PodScheduled", "False", now, "SchedulingGated", GATED_TEXT)]


def condition(kind: str, status: str, now: str, reason: str = "", message: str = "") -> Json:
    """One condition in the form of the server's own components."""
    made: Json = {"type": kind, "status": status, "lastProbeTime": None, "lastTransitionTime": now}
    return {**made, **({"reason": reason} if reason else {}), **({"message": message} if message else {})}


def quality(pod: Json) -> str:
    """The QoS class, which depends on CPU and memory alone."""
    parts = [
        ((resources.get("requests") or {}).get(key), (resources.get("limits") or {}).get(key))
        for resources in (container.get("resources") or {} for container in containers(pod))
        for key in ("cpu", "memory")
    ]
    if all(request is None and limit is None for request, limit in parts):
        return "BestEffort"
    if all(limit is not None and quantities.parse(request) == quantities.parse(limit) for request, limit in parts):
        return "Guaranteed"
    return "Burstable"


def set_condition(pod: Json, condition: Json) -> bool:
    """Write a condition into a pod's status; returns whether it changed anything."""
    conditions = pod["status"].setdefault("conditions", [])
    for index, each in enumerate(conditions):
        if each["type"] == condition["type"]:
            same = all(each.get(key) == condition.get(key) for key in ("status", "reason", "message"))
            if not same:
                conditions[index] = condition
            return not same
    conditions.append(condition)
    return True
