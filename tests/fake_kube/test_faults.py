"""The switches for what goes wrong: each does exactly its one thing."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest
from factories.cluster.kubernetes import MERGE, Cluster, Stream, pod
from fake_kube.server import FakeKube

PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture
def fake() -> Iterator[FakeKube]:
    """A server without nodes."""
    with FakeKube() as server:
        yield server


@pytest.fixture
async def kube(fake: FakeKube, tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(fake.kubeconfig(tmp_path / "config"), fake).opened() as opened:
        yield opened


async def now(kube: Cluster) -> str:
    return str((await kube.get(PODS)).body["metadata"]["resourceVersion"])


async def told(stream: Stream) -> tuple[str, str, str]:
    event = await stream.next()
    meta = event["object"]["metadata"]
    return event["type"], meta["name"], meta["resourceVersion"]


async def test_a_restarted_server_breaks_watches_and_forgets_history(kube: Cluster, fake: FakeKube) -> None:
    """No ERROR event: the connection breaks; afterwards the old version is too old until relisted."""
    await kube.post(PODS, pod())
    old = await now(kube)
    async with kube.watch(PODS, resourceVersion=old) as stream:
        fake.faults.restart()
        with pytest.raises(aiohttp.ClientPayloadError):
            await stream.next()
    async with kube.watch(PODS, resourceVersion=old) as stream:
        event = await stream.next()
    assert event["object"]["message"] == f"too old resource version: {old} ({int(old) + 7})"
    async with kube.watch(PODS, resourceVersion=await now(kube)) as stream:
        await kube.post(PODS, pod("after"))
        assert (await told(stream))[:2] == ("ADDED", "after")


async def test_a_server_that_is_away_refuses_connections_and_comes_back_with_its_history(
    kube: Cluster, fake: FakeKube
) -> None:
    """A short outage is no reason to list again."""
    at = await now(kube)
    fake.faults.away()
    with pytest.raises(aiohttp.ClientConnectorError):
        await kube.get(PODS)
    fake.faults.away(on=False)
    await kube.post(PODS, pod())
    async with kube.watch(PODS, resourceVersion=at) as stream:
        assert (await told(stream))[:2] == ("ADDED", "p")


async def test_a_cut_watch_breaks_in_the_middle_and_an_ended_one_in_order(kube: Cluster, fake: FakeKube) -> None:
    """What a client must tell apart: an exception, and the end of a stream."""
    async with kube.watch(PODS, resourceVersion=await now(kube)) as stream:
        assert fake.faults.cut_watches() == 1
        with pytest.raises(aiohttp.ClientPayloadError):
            await stream.next()
    async with kube.watch(PODS, resourceVersion=await now(kube)) as stream:
        assert fake.faults.end_watches() == 1
        assert await stream.next() is None


async def test_a_hidden_change_is_in_lists_and_in_no_watch(kube: Cluster, fake: FakeKube) -> None:
    """A skipped event: only a resync finds it."""
    async with kube.watch(PODS, resourceVersion=await now(kube)) as stream:
        fake.faults.hide("pods")
        await kube.post(PODS, pod("hidden"))
        await kube.post(PODS, pod("seen"))
        assert (await told(stream))[:2] == ("ADDED", "seen")
    assert [each["metadata"]["name"] for each in (await kube.get(PODS)).items] == ["hidden", "seen"]


async def test_a_replay_brings_old_versions_again(kube: Cluster, fake: FakeKube) -> None:
    """A client that believes them goes back in time."""
    async with kube.watch(PODS, resourceVersion=await now(kube)) as stream:
        await kube.post(PODS, pod())
        await kube.patch(f"{PODS}/p", {"metadata": {"labels": {"a": "b"}}}, MERGE)
        first = [await told(stream) for _ in range(2)]
        fake.faults.replay("pods", 2)
        assert [await told(stream) for _ in range(2)] == first


async def test_pages_can_become_too_old(kube: Cluster, fake: FakeKube) -> None:
    """A list then starts again."""
    for name in ("a", "b"):
        await kube.post(PODS, pod(name))
    first = await kube.get(PODS, limit=1)
    fake.faults.expire_pages()
    reply = await kube.get(PODS, **{"limit": 1, "continue": first.body["metadata"]["continue"]})
    assert (reply.code, reply.reason) == (410, "Expired")


@pytest.mark.parametrize("after", [False, True])
async def test_a_failed_request_may_have_taken_effect(kube: Cluster, fake: FakeKube, after: bool) -> None:
    """An error does not say that nothing happened; the next request succeeds."""
    fake.faults.fail(1, code=503, verb="create", path="pods", after=after)
    assert (await kube.post(PODS, pod())).code == 503
    assert len((await kube.get(PODS)).items) == (1 if after else 0)
    assert (await kube.post(PODS, pod("q"))).code == 201


async def test_a_bookmark_comes_on_command(kube: Cluster, fake: FakeKube) -> None:
    """To those who want bookmarks."""
    async with kube.watch(PODS, resourceVersion=await now(kube), allowWatchBookmarks="true") as stream:
        fake.faults.bookmark()
        (mark,) = await stream.until("BOOKMARK")
    assert mark["object"]["metadata"]["resourceVersion"] == await now(kube)


async def test_requests_are_counted_by_who_and_what(kube: Cluster, fake: FakeKube) -> None:
    """So that `one write per pod` can be asserted."""
    await kube.post(PODS, pod())
    await kube.patch(f"{PODS}/p", {"metadata": {"labels": {"a": "b"}}}, MERGE)
    assert fake.count(verb="patch", path="pods") == 1
    assert fake.count(verb="patch", path="pods/status") == 0


async def test_a_torn_watch_ends_in_order_within_a_line(kube: Cluster, fake: FakeKube) -> None:
    """No error says that the last line is not whole."""
    async with kube.watch(PODS, resourceVersion=await now(kube)) as stream:
        assert fake.faults.tear_watches() == 1
        with pytest.raises(ValueError, match=r"Unterminated|Expecting"):
            await stream.next()


async def test_a_restored_server_has_its_old_versions_and_is_silent_to_those_who_knew_more(
    kube: Cluster, fake: FakeKube
) -> None:
    """A watch from the future is no error, it only never says anything."""
    await kube.post(PODS, pod("before"))
    backup, at = fake.faults.backup(), await now(kube)
    await kube.post(PODS, pod("after"))
    future = await now(kube)
    fake.faults.restore(backup)
    assert [each["metadata"]["name"] for each in (await kube.get(PODS)).body["items"]] == ["before"]
    assert await now(kube) == at
    async with kube.watch(PODS, resourceVersion=future, allowWatchBookmarks="true") as stream:
        await kube.post(PODS, pod("new"))
        fake.faults.bookmark()
        event = await stream.next()
    assert event["type"] == "BOOKMARK", "the new pod is older than what this one knows"
