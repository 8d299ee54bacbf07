"""Events in the new words and the old."""

from datetime import UTC, datetime

import pytest
from factories.kubernetes import APPLY, MERGE, Cluster, Json, pod

MOMENT = datetime(2026, 11, 21, tzinfo=UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def event(namespace: str, name: str = "e", **changes: object) -> Json:
    """One about the pod p; a change to None leaves the field out."""
    about = {"kind": "Pod", "apiVersion": "v1", "namespace": namespace, "name": "p", "uid": "u"}
    body: Json = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": name},
        "eventTime": MOMENT,
        "reportingController": "sluice.dev/pod-watcher",
        "reportingInstance": "pod-watcher-0",
        "action": "Waiting",
        "reason": "NoNodeCanFit",
        "type": "Warning",
        "note": "no node has a free 1g.5gb",
        "regarding": about,
        **changes,
    }
    return {key: value for key, value in body.items() if value is not None}


@pytest.fixture
def events(namespace: str) -> str:
    """The path of the namespace's events."""
    return f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"


async def test_a_complete_event_is_kept(kube: Cluster, namespace: str, events: str) -> None:
    """And kubectl, which reads core/v1, finds it by the pod."""
    assert (await kube.post(events, event(namespace))).code == 201

    found = await kube.get(
        f"/api/v1/namespaces/{namespace}/events", fieldSelector="involvedObject.name=p,involvedObject.uid=u"
    )

    (seen,) = found.items
    assert (seen["message"], seen["reason"], seen["involvedObject"]["name"]) == (
        "no node has a free 1g.5gb",
        "NoNodeCanFit",
        "p",
    )


@pytest.mark.parametrize("field", ["eventTime", "reportingController", "reportingInstance", "action", "reason", "type"])
async def test_an_incomplete_event_is_refused(kube: Cluster, namespace: str, events: str, field: str) -> None:
    """An event that is refused is a reason that nobody sees."""
    reply = await kube.post(events, event(namespace, **{field: None}))

    assert (reply.code, reply.reason) == (422, "Invalid")


async def test_an_event_about_a_node_is_refused_among_pods(kube: Cluster, namespace: str, events: str) -> None:
    """What has no namespace has its events in `default` (or `kube-system`)."""
    reply = await kube.post(events, event(namespace, regarding={"kind": "Node", "name": "n1"}))

    assert reply.code == 422
    assert "does not match event.namespace" in reply.message


async def test_an_event_may_live_elsewhere_than_what_it_is_about(kube: Cluster, namespace: str, events: str) -> None:
    """Only of events in the old words, without a moment, it is checked: a wrong namespace of ours is told by nobody."""
    about = {"kind": "Pod", "name": "p", "namespace": "other"}
    old = {
        "metadata": {"name": "old"}, "involvedObject": about, "reason": "R", "message": "m", "type": "Normal",
    }  # fmt: skip

    new_words = await kube.post(events, event(namespace, regarding=about))
    old_words = await kube.post(f"/api/v1/namespaces/{namespace}/events", old)

    assert new_words.code == 201
    assert (old_words.code, "does not match event.namespace" in old_words.message) == (422, True)


async def test_an_event_about_a_node_belongs_to_default(kube: Cluster, namespace: str) -> None:
    """The one exception."""
    path = "/apis/events.k8s.io/v1/namespaces/default/events"
    reply = await kube.post(path, event("default", namespace, regarding={"kind": "Node", "name": "n1"}))
    await kube.delete(f"{path}/{namespace}")

    assert reply.code == 201


@pytest.mark.parametrize(("length", "code"), [(1024, 201), (1025, 422)])
async def test_a_note_has_1024_characters(kube: Cluster, namespace: str, events: str, length: int, code: int) -> None:
    """Longer reasons must be cut by us."""
    assert (await kube.post(events, event(namespace, note="n" * length))).code == code


async def test_only_the_series_of_an_event_may_change(kube: Cluster, namespace: str, events: str) -> None:
    """Another text is another event; a repeat is a count."""
    await kube.post(events, event(namespace))

    note = await kube.patch(f"{events}/e", {"note": "another"}, MERGE)
    once = await kube.patch(f"{events}/e", {"series": {"count": 1, "lastObservedTime": MOMENT}}, MERGE)
    often = await kube.patch(f"{events}/e", {"series": {"count": 57, "lastObservedTime": MOMENT}}, MERGE)

    assert note.code == 422
    assert "field is immutable" in note.message
    assert once.code == 422
    assert (often.code, often.body["series"]["count"]) == (200, 57)


async def test_the_old_words_let_text_and_count_change(kube: Cluster, namespace: str) -> None:
    """core/v1 is laxer."""
    path = f"/api/v1/namespaces/{namespace}/events"
    old = {
        "metadata": {"name": "o"},
        "involvedObject": {"kind": "Pod", "namespace": namespace, "name": "p"},
        "message": "m",
    }
    assert (await kube.post(path, old)).code == 201

    reply = await kube.patch(f"{path}/o", {"message": "another", "count": 2}, MERGE)

    assert (reply.code, reply.body["message"], reply.body["count"]) == (200, "another", 2)


async def test_an_apply_makes_an_event_once(kube: Cluster, namespace: str, events: str) -> None:
    """A fixed name per pod and reason makes events idempotent."""
    codes = [(await kube.patch(f"{events}/e", event(namespace), APPLY, fieldManager="t")).code for _ in range(2)]

    assert codes == [201, 200]
    assert len((await kube.get(events)).items) == 1


async def test_a_pod_and_its_events_have_nothing_to_do_with_each_other(
    kube: Cluster, namespace: str, pods: str, events: str
) -> None:
    """An event outlives its pod."""
    await kube.post(pods, pod())
    await kube.post(events, event(namespace))
    await kube.delete(f"{pods}/p")

    assert (await kube.get(f"{events}/e")).code == 200
