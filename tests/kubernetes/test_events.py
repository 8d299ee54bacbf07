"""Events in events.k8s.io and core/v1."""

from datetime import UTC, datetime

import pytest
from factories.cluster.kubernetes import APPLY, MERGE, Cluster, Json

MOMENT = datetime(2026, 11, 21, tzinfo=UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def event(namespace: str, name: str = "e", **changes: object) -> Json:
    """One about the pod p; a change to None leaves the field out."""
    about = {"kind": "Pod", "apiVersion": "v1", "namespace": namespace, "name": "p", "uid": "u"}
    by = {"reportingController": "sluice.dev/pod-watcher", "reportingInstance": "pod-watcher-0", "action": "Waiting"}
    said = {"type": "Warning", "reason": "NoNodeCanFit", "note": "no node has a free 1g.5gb"}
    head = {"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": name}}
    body: Json = {**head, "eventTime": MOMENT, "regarding": about, **by, **said, **changes}
    return {key: value for key, value in body.items() if value is not None}


@pytest.fixture
def events(namespace: str) -> str:
    return f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"


async def test_a_complete_event_is_kept(kube: Cluster, namespace: str, events: str) -> None:
    """And kubectl, which reads core/v1, finds it by the pod."""
    assert (await kube.post(events, event(namespace))).code == 201
    found = await kube.get(
        f"/api/v1/namespaces/{namespace}/events", fieldSelector="involvedObject.name=p,involvedObject.uid=u"
    )
    (seen,) = found.items
    assert (seen["message"], seen["reason"]) == ("no node has a free 1g.5gb", "NoNodeCanFit")
    assert seen["involvedObject"]["name"] == "p"


@pytest.mark.parametrize("field", ["eventTime", "reportingController", "reportingInstance", "action", "reason", "type"])
async def test_an_incomplete_event_is_refused(kube: Cluster, namespace: str, events: str, field: str) -> None:
    """A rejected Event is a reason that is never shown."""
    reply = await kube.post(events, event(namespace, **{field: None}))
    assert (reply.code, reply.reason) == (422, "Invalid")


NODE = {"kind": "Node", "name": "n1"}


def old_event(name: str, about: Json, **changes: object) -> Json:
    """One of core/v1, without an eventTime."""
    return {"metadata": {"name": name}, "involvedObject": about, "message": "m", **changes}


async def test_an_event_about_a_node_is_refused_among_pods(kube: Cluster, namespace: str, events: str) -> None:
    """Objects without a namespace have their Events in `default`; elsewhere no tool would find them."""
    new = await kube.post(events, event(namespace, regarding=NODE))
    old = await kube.post(f"/api/v1/namespaces/{namespace}/events", old_event("old", NODE))
    for reply in (new, old):
        reply.refused(422, "Invalid", "does not match event.namespace")


@pytest.mark.parametrize("place", ["default", "kube-system"])
async def test_an_event_about_a_node_belongs_to_default(kube: Cluster, namespace: str, place: str) -> None:
    """Or to kube-system, if it has a time."""
    new = f"/apis/events.k8s.io/v1/namespaces/{place}/events"
    old = f"/api/v1/namespaces/{place}/events"
    written = await kube.post(new, event(place, namespace, regarding=NODE))
    in_old_words = await kube.post(old, old_event(f"{namespace}-old", NODE))
    await kube.delete(f"{new}/{namespace}")
    await kube.delete(f"{old}/{namespace}-old")
    assert (written.code, in_old_words.code) == (201, 201 if place == "default" else 422)


async def test_only_an_event_without_time_must_be_where_its_pod_is(kube: Cluster, namespace: str, events: str) -> None:
    """A wrong namespace would stay unnoticed: the Event would be where no `kubectl describe` looks."""
    about = {"kind": "Pod", "name": "p", "namespace": "other"}
    timed = old_event(
        "timed", about, eventTime=MOMENT, reportingComponent="c", reportingInstance="c-0", action="a", reason="r"
    )
    new = await kube.post(events, event(namespace, regarding=about))
    old = await kube.post(f"/api/v1/namespaces/{namespace}/events", timed)
    untimed = await kube.post(f"/api/v1/namespaces/{namespace}/events", old_event("untimed", about))
    assert (new.code, old.code, untimed.code) == (201, 201, 422)
    assert "does not match event.namespace" in untimed.message


@pytest.mark.parametrize(("note", "code"), [("n" * 1024, 201), ("n" * 1025, 422), ("é" * 512, 201), ("é" * 513, 422)])
async def test_a_note_has_1024_bytes(kube: Cluster, namespace: str, events: str, note: str, code: int) -> None:
    """Longer reasons must be cut by us: the refusal speaks of characters and counts bytes (ValidateEvent)."""
    assert (await kube.post(events, event(namespace, note=note))).code == code


async def test_only_the_series_of_an_event_may_change(kube: Cluster, namespace: str, events: str) -> None:
    """Another text is another event; a repeat is a count."""
    await kube.post(events, event(namespace))
    note = await kube.patch(f"{events}/e", {"note": "another"}, MERGE)
    once = await kube.patch(f"{events}/e", {"series": {"count": 1, "lastObservedTime": MOMENT}}, MERGE)
    often = await kube.patch(f"{events}/e", {"series": {"count": 57, "lastObservedTime": MOMENT}}, MERGE)
    note.refused(422, "Invalid", "field is immutable")
    assert once.code == 422
    assert (often.code, often.body["series"]["count"]) == (200, 57)


async def test_an_apply_makes_an_event_once(kube: Cluster, namespace: str, events: str) -> None:
    """A fixed name per pod and reason makes events idempotent."""
    codes = [(await kube.patch(f"{events}/e", event(namespace), APPLY, fieldManager="t")).code for _ in range(2)]
    assert codes == [201, 200]
    assert len((await kube.get(events)).items) == 1
