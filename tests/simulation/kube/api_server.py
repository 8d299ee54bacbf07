"""The API server of a simulated cluster: pods and nodes with UIDs and versions, and a history that can be watched.

Objects are never changed in place: each write stores another one under the next version. It does not know who asks.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from fake_kube.errors import ApiError
from fake_kube.requests.patch_formats import json_patch, strategic_merge
from simulation.kube.objects import Json, is_dying, is_gated, is_managed, key_of, pinned_to, uid_of
from simulation.world.trace import Trace
from simulation.world.virtual_clock import VirtualClock

Key = tuple[str, str, str]
DONE = frozenset({"Succeeded", "Failed"})


class RefusedError(Exception):
    """A call was not carried out. `status` is of HTTP."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Change:
    """One step of the history. Of a pod or node that is new `before` is None, of one that is gone `after`."""

    at: float
    version: int
    before: Json | None
    after: Json | None


@dataclass(slots=True)
class ApiServer:
    """What is stored, how it came to that, and its listeners."""

    clockwork: VirtualClock
    trace: Trace
    dice: Random
    version: int = 1000
    objects: dict[Key, Json] = field(default_factory=dict)
    history: list[Change] = field(default_factory=list)
    on_change: list[Callable[[Change], None]] = field(default_factory=list)
    on_written: list[Callable[[str, str, Json, Json], None]] = field(default_factory=list)
    """Of writes that Sluice made: the UID, which step, the pod before and after."""
    on_asked: list[Callable[[str, str], None]] = field(default_factory=list)
    """Of writes of Sluice that have come here, whatever became of them: the UID, and which step."""
    sender_is_over: bool = False
    """The sender of the call in progress has died since, or is not active any more."""
    away_until: float = 0.0
    """It is unreachable until then."""
    refuses_until: float = 0.0
    """It is overloaded: most calls are refused."""
    lag_until: float = 0.0
    lag_s: float = 0.0
    """The server that watches are connected to is so far behind."""

    # -- what may go wrong ----------------------------------------------------------------------------------------

    @property
    def is_away(self) -> bool:
        return self.clockwork.now < self.away_until

    def refuse_if_busy(self) -> None:
        """Raises RefusedError with 429 or 500, when it is overloaded."""
        if self.clockwork.now < self.refuses_until and self.dice.random() < 0.7:
            raise RefusedError(*self.dice.choice(((429, "too many requests"), (500, "etcdserver: leader changed"))))

    def heal(self) -> None:
        self.away_until = self.refuses_until = self.lag_until = self.lag_s = 0.0

    # -- reading --------------------------------------------------------------------------------------------------

    def pod(self, namespace: str, name: str) -> Json | None:
        return self.objects.get(("Pod", namespace, name))

    def by_uid(self, uid: str) -> Json | None:
        """The pod of this UID, while it is there."""
        return next((each for each in self.objects.values() if each["metadata"]["uid"] == uid), None)

    def pods(self) -> list[Json]:
        return [each for (kind, _, _), each in self.objects.items() if kind == "Pod"]

    # -- what people, controllers, the scheduler and kubelets write ---------------------------------------------------

    def create(self, made: Json) -> None:
        """Something new. Raises RefusedError."""
        if key_of(made) in self.objects:
            raise RefusedError(409, f"{key_of(made)} already exists")
        self._store(None, made)

    def write(self, before: Json, **parts: Json) -> Json:
        """The same object with other `metadata`, `spec` or `status`: these keys are put over what is there."""
        changed = {**before, **{part: {**before[part], **keys} for part, keys in parts.items()}}
        return self._store(before, changed)

    def replace(self, before: Json, after: Json) -> Json:
        """The same object, as it is `after`."""
        return self._store(before, after)

    def mark_deleted(self, pod: Json, grace_s: int) -> None:
        """It is to be deleted; at once if nothing runs and no finalizer holds it."""
        marks = {"deletionTimestamp": f"t{self.clockwork.now:.3f}", "deletionGracePeriodSeconds": grace_s}
        meta = pod["metadata"]
        if grace_s == 0 and not meta.get("finalizers"):
            self._drop({**pod, "metadata": {**meta, **marks}})
        elif meta.get("deletionGracePeriodSeconds") != grace_s:
            self.write(pod, metadata=marks)

    def drop(self, found: Json) -> None:
        self._drop(found)

    # -- what Sluice writes ---------------------------------------------------------------------------------------

    def patch(self, uid: str, step: str, namespace: str, name: str, operations: Sequence[Mapping[str, Any]]) -> Json:
        """A JSON patch. Raises RefusedError."""
        before = self._asked(uid, step, namespace, name)
        try:
            after = json_patch(before, list(operations))
        except ApiError as error:
            raise RefusedError(422, str(error)) from error
        self._check_update(before, after)
        meta = {**after["metadata"], "resourceVersion": before["metadata"]["resourceVersion"]}
        if after["spec"] != before["spec"]:
            meta["generation"] = meta["generation"] + 1
        stored = self._store(before, {**after, "metadata": meta})
        self._written(step, before, stored)
        return stored

    def patch_status(self, uid: str, namespace: str, name: str, body: Mapping[str, Any]) -> Json:
        """A strategic merge into the status, with the UID as a precondition. Raises RefusedError."""
        before = self._asked(uid, "condition", namespace, name)
        if body["metadata"]["uid"] != uid_of(before):
            raise RefusedError(409, f"the UID in the precondition is {body['metadata']['uid']}")
        merged = strategic_merge(before["status"], body["status"])
        stored = self.write(before, status=merged)
        self._written("condition", before, stored)
        return stored

    def may_evict(self, uid: str, namespace: str, name: str) -> Json:
        """The pod that is to be evicted. Raises RefusedError."""
        found = self._asked(uid, "evict", namespace, name)
        if uid_of(found) != uid:
            raise RefusedError(409, f"the UID in the precondition is {uid}")
        return found

    # -- inside ---------------------------------------------------------------------------------------------------

    def _asked(self, uid: str, step: str, namespace: str, name: str) -> Json:
        for hear in self.on_asked:
            hear(uid, step)
        self.refuse_if_busy()
        found = self.pod(namespace, name)
        if found is None:
            raise RefusedError(404, f'pods "{name}" not found')
        return found

    def _check_update(self, before: Json, after: Json) -> None:
        """What may never change, or only while the pod waits."""
        if after["metadata"]["uid"] != before["metadata"]["uid"]:
            raise RefusedError(409, "metadata.uid: field is immutable")
        gates = {each["name"] for each in after["spec"].get("schedulingGates", [])}
        had = {each["name"] for each in before["spec"].get("schedulingGates", [])}
        if not gates <= had:
            raise RefusedError(422, "spec.schedulingGates: only deletion is allowed")
        if not had and pinned_to(before) != pinned_to(after):
            raise RefusedError(422, "spec: pod updates may not change fields other than a few")

    def _written(self, step: str, before: Json, after: Json) -> None:
        if self.trace.keeps:
            self.trace.tell("api server", f"taken: {step}", uid_of(after), after)
        for hear in self.on_written:
            hear(uid_of(after), step, before, after)

    def _store(self, before: Json | None, after: Json) -> Json:
        self.version += 1
        after = {**after, "metadata": {**after["metadata"], "resourceVersion": str(self.version)}}
        self.objects[key_of(after)] = after
        self._changed(Change(self.clockwork.now, self.version, before, after))
        return after

    def _drop(self, last: Json) -> None:
        if self.objects.pop(key_of(last), None) is None:
            return
        self.version += 1
        last = {**last, "metadata": {**last["metadata"], "resourceVersion": str(self.version)}}
        self._changed(Change(self.clockwork.now, self.version, last, None))

    def _changed(self, change: Change) -> None:
        self.history.append(change)
        if self.trace.keeps:
            shown = change.after or change.before or {}
            what = "gone" if change.after is None else "new" if change.before is None else "changed"
            self.trace.tell("api server", what, "/".join(key_of(shown)), _state(shown))
        for hear in self.on_change:
            hear(change)


def _state(found: Json) -> str:
    meta = found["metadata"]
    words = [meta["uid"], f"v{meta['resourceVersion']}"]
    if found["kind"] == "ResourceClaim":
        words += ["dying"] if is_dying(found) else []
        words += [f"{found['status']} {meta.get('finalizers', [])}"]
    if found["kind"] == "Pod":
        words += ["gated" if is_gated(found) else f"on {found['spec'].get('nodeName', '?')}"]
        words += ["dying"] if is_dying(found) else []
        words += [] if is_managed(found) else ["without our label"]
        words += [str(found["status"].get("phase")), str(found["status"].get("containerStatuses", ""))]
    return " ".join(words)
