"""Lists and watches: versions, selectors, bookmarks, and what is too old."""

import pytest
from factories.cluster.kubernetes import MERGE, Cluster, Json, Stream, pod
from kubernetes.aio import client
from kubernetes.aio.client.exceptions import ApiException
from kubernetes.aio.watch import Watch

MANAGED = "sluice.dev/managed=true"
MARKED = {"labelSelector": MANAGED, "allowWatchBookmarks": "true"}


def labelled(name: str = "p", **changes: str) -> Json:
    body = pod(name)
    body["metadata"]["labels"] = {"sluice.dev/managed": "true", **changes}
    return body


async def version(kube: Cluster, pods: str) -> str:
    return str((await kube.get(pods)).body["metadata"]["resourceVersion"])


@pytest.fixture
async def forgetful(kube: Cluster, pods: str) -> Cluster:
    """
    A server that does not know its first version any more: its storage was compacted since (every 5 minutes, where
    no write has changed that), which is asked, and its cache begins later, as that of every server restarted since then
    does, which a watch shows at once.
    """
    if kube.fake is not None:
        return kube
    exact = await kube.get(pods, resourceVersion="1", resourceVersionMatch="Exact")
    async with kube.watch(pods, resourceVersion="1", timeoutSeconds=1) as stream:
        first = await stream.next()
    if exact.code == 200 or first is None or first["type"] != "ERROR":
        pytest.skip("this server is so young that it still knows its first version: not restarted, or not compacted")
    return kube


async def told(stream: Stream) -> tuple[str, str]:
    event = await stream.next()
    return event["type"], event["object"]["metadata"].get("name", "")


async def test_a_watch_goes_on_where_a_list_ended(kube: Cluster, pods: str) -> None:
    """Nothing is missed between the two, and nothing is said twice."""
    await kube.post(pods, labelled("before"))
    at = await version(kube, pods)
    await kube.post(pods, labelled("between"))
    async with kube.watch(pods, resourceVersion=at) as stream:
        await kube.post(pods, labelled("after"))
        assert [await told(stream) for _ in range(2)] == [("ADDED", "between"), ("ADDED", "after")]


async def test_a_deletion_is_announced_before_it_happens(kube: Cluster, pods: str) -> None:
    """MODIFIED with a deletionTimestamp, then DELETED with one: a real end differs from a lost label."""
    await kube.post(pods, labelled())
    async with kube.watch(pods, resourceVersion=await version(kube, pods)) as stream:
        await kube.delete(f"{pods}/p")
        events = await stream.until("DELETED")
    assert events[0]["type"] == "MODIFIED"
    assert all(event["object"]["metadata"]["deletionTimestamp"] for event in events)


async def test_a_removed_label_looks_like_a_deletion(kube: Cluster, pods: str) -> None:
    """With the old labels and without a deletionTimestamp: it is never the end of a pod."""
    await kube.post(pods, labelled())
    async with kube.watch(pods, resourceVersion=await version(kube, pods), labelSelector=MANAGED) as stream:
        await kube.patch(f"{pods}/p", {"metadata": {"labels": {"sluice.dev/managed": None}}}, MERGE)
        (deleted,) = await stream.until("DELETED")
        await kube.patch(f"{pods}/p", {"metadata": {"labels": {"sluice.dev/managed": "true"}}}, MERGE)
        (added,) = await stream.until("ADDED")
    assert deleted["object"]["metadata"]["labels"]["sluice.dev/managed"] == "true"
    assert "deletionTimestamp" not in deleted["object"]["metadata"]
    assert added["object"]["metadata"]["uid"] == deleted["object"]["metadata"]["uid"]


SELECTED = [
    ("field", "metadata.name=one", "one"),
    ("field", "metadata.name!=one", "none two"),
    ("field", "status.phase=Pending", "none one two"),
    ("field", "spec.nodeName=", "none one two"),
    ("field", "spec.schedulerName=mine", "two"),
    ("field", "spec.nodeName=n1,metadata.name=one", ""),
    ("label", "a=1", "one"),
    ("label", "a!=1", "none two"),
    ("label", "a in (1, 2)", "one two"),
    ("label", "a notin (1)", "none two"),
    ("label", "!a", "none"),
    ("label", "a,b", "two"),
]


async def test_pods_are_selected_by_fields_and_labels(kube: Cluster, pods: str) -> None:
    """What a reader may rely on: these fields, and equality, sets and existence of labels."""
    for name, labels, spec in (
        ("none", {}, {}),
        ("one", {"a": "1"}, {}),
        ("two", {"a": "2", "b": ""}, {"schedulerName": "mine"}),
    ):
        body = pod(name, **spec)
        body["metadata"]["labels"] = labels
        await kube.post(pods, body)
    for kind, selector, names in SELECTED:
        reply = await kube.get(pods, **{f"{kind}Selector": selector})
        assert [each["metadata"]["name"] for each in reply.items] == names.split(), selector


@pytest.mark.parametrize("field", ["spec.schedulingGates", "metadata.annotations"])
async def test_pods_are_not_selected_by_other_fields(kube: Cluster, pods: str, field: str) -> None:
    """Gates and annotations cannot be filtered by: hence our label."""
    reply = await kube.get(pods, fieldSelector=f"{field}=x")
    reply.refused(400, "BadRequest", "field label not supported")


async def test_initial_events_end_with_a_mark(kube: Cluster, pods: str) -> None:
    """List and watch in one: ADDED for each, then a bookmark that says that this was all."""
    for name in ("a", "b"):
        await kube.post(pods, labelled(name))
    initial = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
    async with kube.watch(pods, **initial, **MARKED) as stream:
        *added, mark = await stream.until("BOOKMARK")
    assert [(event["type"], event["object"]["metadata"]["name"]) for event in added] == [("ADDED", "a"), ("ADDED", "b")]
    assert mark["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    assert int(mark["object"]["metadata"]["resourceVersion"]) > 0


async def test_initial_events_need_their_match(kube: Cluster, pods: str) -> None:
    """A forgotten parameter is an error, not a guess."""
    reply = await kube.get(pods, watch="true", sendInitialEvents="true", allowWatchBookmarks="true")
    assert (reply.code, reply.reason) == (422, "Invalid")


async def test_a_watch_says_how_far_it_is_before_it_ends(kube: Cluster, pods: str) -> None:
    """Bookmarks come shortly before the timeout, else a quiet day makes the list's version too old."""
    began = await version(kube, pods)
    async with kube.watch(pods, resourceVersion=began, timeoutSeconds=5, **MARKED) as stream:
        assert (await kube.post(pods, pod("foreign"))).code == 201
        marks = await ended(stream)
    assert marks
    for mark in marks:
        assert (mark["type"], mark["object"]["kind"]) == ("BOOKMARK", "Pod")
        assert int(mark["object"]["metadata"]["resourceVersion"]) > int(began)
        assert "name" not in mark["object"]["metadata"]


async def test_a_watch_of_what_does_not_change_may_end_without_a_word(kube: Cluster, pods: str) -> None:
    """A client that takes a watch without bookmarks for a dead one would restart it forever."""
    began = await version(kube, pods)
    async with kube.watch(pods, resourceVersion=began, timeoutSeconds=3, **MARKED) as stream:
        marks = await ended(stream)
    if kube.fake is not None:
        assert marks == []
    # Where other pods change meanwhile, and where etcd reports how far it is, there are some.
    assert {mark["type"] for mark in marks} <= {"BOOKMARK"}


async def ended(stream: Stream) -> list[Json]:
    """All that a watch says until it is closed in order."""
    said = []
    while (event := await stream.next()) is not None:
        said.append(event)
    return said


async def test_a_version_that_is_too_old_is_an_event_of_error(forgetful: Cluster, pods: str) -> None:
    """HTTP 200 and an ERROR that says 410: every used server forgets its first version."""
    async with forgetful.watch(pods, resourceVersion="1") as stream:
        event = await stream.next()
        assert await stream.next() is None
    assert event["type"] == "ERROR"
    assert (event["object"]["kind"], event["object"]["code"], event["object"]["reason"]) == ("Status", 410, "Expired")
    assert event["object"]["message"].startswith("too old resource version: 1 (")


async def test_the_official_client_raises_what_is_too_old(
    forgetful: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ApiException with 410 is what the watcher catches."""
    async with forgetful.official() as api:
        monkeypatch.setattr(client.Configuration, "_default", api.configuration)
        async with Watch() as watch:
            with pytest.raises(ApiException) as caught:
                async for _ in watch.stream(
                    client.CoreV1Api(api).list_namespaced_pod, namespace, resource_version="1", timeout_seconds=5
                ):
                    pass
    assert caught.value.status == 410
    assert str(caught.value.reason).startswith("Expired: too old resource version: 1 (")


async def test_a_list_of_an_old_moment_is_too_old(forgetful: Cluster, pods: str) -> None:
    """Exact at version 1 is answered 410."""
    reply = await forgetful.get(pods, resourceVersion="1", resourceVersionMatch="Exact")
    assert (reply.code, reply.reason) == (410, "Expired")


async def test_a_version_of_the_future_is_not_waited_for_by_a_list(kube: Cluster, pods: str) -> None:
    """504 with its cause; a client that has seen a newer server reads no older one."""
    reply = await kube.get(pods, resourceVersion="999999999999")
    reply.refused(504, "Timeout", "Too large resource version")
    assert reply.body["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"


async def test_a_list_comes_in_pages_of_one_moment(kube: Cluster, pods: str) -> None:
    """Pods that are made meanwhile are in none of them."""
    for name in ("a", "b", "c"):
        await kube.post(pods, pod(name))
    first = await kube.get(pods, limit=2)
    await kube.post(pods, pod("d"))
    second = await kube.get(pods, **{"limit": 2, "continue": first.body["metadata"]["continue"]})
    assert [each["metadata"]["name"] for each in (*first.items, *second.items)] == ["a", "b", "c"]
    assert first.body["metadata"]["remainingItemCount"] == 1
    assert second.body["metadata"]["resourceVersion"] == first.body["metadata"]["resourceVersion"]
    assert "continue" not in second.body["metadata"]


async def test_a_limit_is_ignored_where_the_cache_answers(kube: Cluster, pods: str) -> None:
    """resourceVersion=0 brings everything at once."""
    for name in ("a", "b"):
        await kube.post(pods, pod(name))
    # A real server's cache follows what was written a moment later.
    await kube.until(lambda: kube.get(pods, resourceVersion=0), lambda reply: len(reply.items) == 2)
    assert len((await kube.get(pods, limit=1, resourceVersion=0)).items) == 2


async def test_metadata_alone_can_be_listed(kube: Cluster, pods: str) -> None:
    """What fits where the spec is of no use."""
    await kube.post(pods, labelled())
    async with kube.official() as api:
        accept = {"Accept": "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"}
        url = f"{api.configuration.host}{pods}"
        header = {**accept, "Authorization": await api.configuration.get_api_key_with_prefix("BearerToken") or ""}
        body = (await (await api.rest_client.request("GET", url, headers=header)).read()).decode()
    assert '"PartialObjectMetadataList"' in body
    assert '"schedulingGates"' not in body
