"""One reflector against an API server in trouble: it recovers the full state, and makes no trouble worse."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from factories.cluster.kubernetes import Cluster, pod
from factories.waiting import until
from fake_kube.server import ADMIN, FakeKube
from structlog.testing import capture_logs

from sluice.runtime.clock import SystemClock
from sluice.runtime.prometheus import metrics
from sluice_pod_watcher.core.cluster.events import Event, Gone, ListingEnded, ListingStarted, Seen
from sluice_pod_watcher.shell.kube import reflector as module
from sluice_pod_watcher.shell.kube.client import KubeApi
from sluice_pod_watcher.shell.kube.reflector import Reflector
from sluice_pod_watcher.shell.metrics import KUBE_REQUESTS, KUBE_TROUBLES

PATH = "/api/v1/namespaces/default/pods"
LONGEST_S = 30.0 * 1.2


class Hasty(SystemClock):
    """Records requested sleeps, and sleeps less."""

    def __init__(self) -> None:
        self.pauses: list[float] = []

    async def sleep(self, duration_s: float) -> None:
        self.pauses.append(duration_s)
        await asyncio.sleep(min(duration_s, 0.01))


class Watching:
    """A reflector, and the state of a reader that follows it."""

    def __init__(self, kube: FakeKube, api: KubeApi) -> None:
        self.kube, self.clock = kube, Hasty()
        self.known: dict[str, str] = {}
        self.events: list[Event] = []
        self.listed: set[str] | None = None
        self.on_event: Callable[[Event], None] = lambda _: None
        self.reflector = Reflector(api, self.clock, "pods", "/api/v1/pods", "", self.take)
        self.task: asyncio.Task[None] | None = None

    async def take(self, event: Event) -> None:
        self.events.append(event)
        self.on_event(event)
        match event:
            case ListingStarted():
                self.listed = set()
            case Seen(object=seen):
                self.known[seen["metadata"]["name"]] = seen["metadata"]["resourceVersion"]
                if self.listed is not None:
                    self.listed.add(seen["metadata"]["name"])
            case Gone(object=gone):
                self.known.pop(gone["metadata"]["name"], None)
            case ListingEnded():
                assert self.listed is not None
                self.known = {name: self.known[name] for name in self.listed}
                self.listed = None

    def start(self) -> None:
        self.task = asyncio.create_task(self.reflector.run())

    async def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self.task

    async def start_knowing(self) -> None:
        self.start()
        await self.until_known()

    @property
    def listings(self) -> int:
        return sum(isinstance(each, ListingStarted) for each in self.events)

    async def until(self, good: Callable[[], Any], what: str) -> None:
        """Wait, while it runs."""

        def look() -> Any:
            assert self.task is None or not self.task.done(), self.task
            return good()

        await until(look, lambda: f"{what}; known {self.known}, pauses {self.clock.pauses}")

    async def until_known(self) -> None:
        """Wait until its state equals the server's."""
        has = lambda: {  # noqa: E731
            each["metadata"]["name"]: each["metadata"]["resourceVersion"] for each in self.kube.all("pods")
        }
        await self.until(lambda: self.listed is None and self.known == has(), f"what the server has: {has()}")

    async def sees_another(self, cluster: Cluster) -> None:
        """A fourth pod is created, and seen."""
        await make(cluster, "d")
        await self.until_known()

    async def until_watching(self) -> None:
        await self.until(lambda: self.kube.front.watches == 1, "a watch")


@pytest.fixture
async def cluster(kube: FakeKube, tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(kube.kubeconfig(tmp_path / "admin"), kube).opened() as opened:
        yield opened


@pytest.fixture
async def seen(kube: FakeKube, cluster: Cluster, api: KubeApi) -> AsyncIterator[Watching]:
    """Three pods exist; the test starts the reflector, which is stopped at the end."""
    await make(cluster, "a", "b", "c")
    made = Watching(kube, api)
    yield made
    await made.stop()


async def make(cluster: Cluster, *names: str) -> None:
    """Create pods; once more where the server has broken this connection too."""
    for name in names:
        made = await until(lambda name=name: cluster.post(PATH, pod(name)), yet=(OSError, aiohttp.ClientError))
        assert made.code in {201, 409}, made


async def test_a_listing_whose_pages_expire_ends_all_the_same(seen: Watching, kube: FakeKube, monkeypatch) -> None:
    """A large cluster on a slow day would never be listed: each try would find its continue token expired."""
    monkeypatch.setattr(module, "PAGE", 1)
    seen.on_event = lambda event: kube.faults.expire_pages() if isinstance(event, Seen) else None
    await seen.start_knowing()
    assert seen.listings == 2
    assert len(seen.clock.pauses) == 1


async def test_a_torn_line_loses_nothing_and_lists_nothing(seen: Watching, kube: FakeKube, cluster: Cluster) -> None:
    """Half an event would be taken for one, or skipped."""
    await seen.start_knowing()
    await seen.until_watching()
    assert kube.faults.tear_watches() == 1
    await seen.sees_another(cluster)
    assert seen.listings == 1


async def test_a_watch_that_is_too_old_lists_again_after_a_pause(seen, kube, cluster) -> None:
    """The normal case after an API server was restarted."""
    await seen.start_knowing()
    await seen.until_watching()
    kube.faults.restart()
    await seen.sees_another(cluster)
    await seen.until(lambda: seen.listings == 2, "a second listing")
    assert seen.clock.pauses


async def test_a_restored_backup_is_noticed_at_once_and_told(seen: Watching, kube: FakeKube, cluster: Cluster) -> None:
    """Its versions are smaller: an older watch stays silent, and every object looks older than it is."""
    await seen.start_knowing()
    backup = kube.faults.backup()
    await make(cluster, "later", "later-too")
    await cluster.delete(f"{PATH}/a", {"gracePeriodSeconds": 0})
    await seen.until_known()
    kube.faults.restore(backup)
    await seen.until_known()
    assert set(seen.known) == {"a", "b", "c"}
    assert [each.went_back for each in seen.events if isinstance(each, ListingStarted)] == [False, True]
    await make(cluster, "new")
    await seen.until_known()
    assert seen.listings == 2


@pytest.mark.parametrize("verb", ["list", "watch"])
async def test_a_server_that_is_busy_says_when_to_come_again(seen, kube, cluster, verb) -> None:
    """An earlier retry keeps the server busy."""
    kube.faults.fail(1, code=429, verb=verb, path="pods", retry_after_s=7)
    seen.start()
    await seen.until_watching()
    await seen.sees_another(cluster)
    (pause_s,) = seen.clock.pauses
    assert 7.0 <= pause_s <= 7.0 * 1.2


async def test_a_rotated_token_is_read_again(seen: Watching, kube: FakeKube, tmp_path: Path, cluster: Cluster) -> None:
    """The watch would stop for good when its first token expires."""
    await seen.start_knowing()
    await seen.until_watching()
    old, kube.admin_token = kube.admin_token, kube.call(lambda: kube.access.token(ADMIN))
    kube.kubeconfig(tmp_path / "config")
    kube.call(lambda: kube.access.revoke(old))
    kube.faults.end_watches()
    async with Cluster(kube.kubeconfig(tmp_path / "admin"), kube).opened() as again:
        await make(again, "d")
    await seen.until_known()
    assert seen.listings == 1


async def test_an_expired_token_that_is_not_renewed_is_tried_slowly(seen, kube, cluster) -> None:
    """Every try is a line in an audit log."""
    kube.call(lambda: kube.access.revoke(kube.admin_token))
    with capture_logs() as logs:
        seen.start()
        await seen.until(lambda: len(seen.clock.pauses) >= 10, "some tries")
    assert {each["status"] for each in logs if each["log_level"] == "warning"} == {401}
    assert seen.clock.pauses[-1] >= 15.0


async def test_without_the_right_to_watch_it_says_so_and_keeps_asking_slowly(kube, cluster, tmp_path) -> None:
    """A missing ClusterRole would be a silent pod-watcher, or one that hammers the API server."""
    token = kube.service_account_token("default", "powerless")
    api = await KubeApi.connect(kube.kubeconfig(tmp_path / "powerless", token=token))
    seen = Watching(kube, api)
    with capture_logs() as logs:
        seen.start()
        await seen.until(lambda: len(seen.clock.pauses) >= 12, "some tries")
    refused = [each for each in logs if each["log_level"] == "warning"]
    assert refused[0]["event"] == "listing and watching is not allowed; check the RBAC rules"
    assert 'cannot list resource "pods"' in refused[0]["why"]
    assert seen.clock.pauses[-1] >= 15.0
    assert max(seen.clock.pauses) <= LONGEST_S
    await seen.stop()
    await api.close()


async def test_watches_that_end_at_once_are_not_asked_for_at_once(seen: Watching, kube: FakeKube) -> None:
    """An orderly end is no error: without a pause this would be the fastest loop there is."""
    await seen.start_knowing()

    def ended() -> bool:
        if kube.front.watches:
            kube.faults.end_watches()
        return len(seen.clock.pauses) >= 6

    await seen.until(ended, "pauses")
    assert seen.clock.pauses[5] > 2 * max(seen.clock.pauses[0], 0.2)
    assert seen.listings == 1


async def test_a_resync_that_fails_does_not_end_the_watch(seen: Watching, kube: FakeKube, cluster: Cluster) -> None:
    """An API server that cannot list just now can still report every change."""
    seen.reflector.resync_s = 0.3
    with capture_logs() as logs:
        await seen.start_knowing()
        kube.faults.fail(1, code=500, verb="list", path="pods")
        failed = lambda: any(each["event"].startswith("the resync failed") for each in logs)  # noqa: E731
        await seen.until(failed, "a listing that fails")
    await seen.until_watching()
    await seen.sees_another(cluster)
    assert seen.listings == 1


async def test_a_slow_server_is_given_up_and_asked_again(seen: Watching, kube: FakeKube, monkeypatch) -> None:
    """The reflector would wait for an unanswered listing without end."""
    monkeypatch.setattr(module, "LIST_S", 0.05)
    kube.faults.slow(0.5)
    seen.start()
    await seen.until(lambda: len(seen.clock.pauses) >= 2, "it is given up")
    monkeypatch.setattr(module, "LIST_S", 20.0)
    kube.faults.slow(0.0)
    await seen.until_known()


async def test_a_connection_that_is_dead_without_a_word_is_found_out(seen, cluster, monkeypatch) -> None:
    """With a router that forgot it every pod would wait, without an error."""
    monkeypatch.setattr(module, "SILENT_S", 0.2)
    await seen.start_knowing()
    await seen.until(lambda: seen.clock.pauses, "the silence is noticed")
    monkeypatch.setattr(module, "SILENT_S", 20.0)
    await seen.sees_another(cluster)
    assert seen.listings == 1


async def test_an_api_server_that_stays_away_is_told_once_with_what_follows(seen, kube, monkeypatch) -> None:
    """The owner of unseen pods finds it in log and metrics, and its end; not at each of 25 tries."""
    monkeypatch.setattr(module, "OUTAGE_S", 0.05)
    failed = lambda: metrics.value(KUBE_REQUESTS, "GET", "503")  # noqa: E731
    before, troubles = failed(), metrics.value(KUBE_TROUBLES, "pods")
    kube.faults.fail(25, code=503)
    with capture_logs() as lines:
        await seen.start_knowing()
    told = [line for line in lines if "API server" in line["event"]]
    assert [(line["log_level"], line["event"].partition(":")[0]) for line in told] == [
        ("error", "the API server does not answer"),
        ("warning", "the API server answers again"),
    ]
    assert "resumes by itself" in told[0]["remedy"]
    assert failed() - before == 25
    assert metrics.value(KUBE_TROUBLES, "pods") - troubles == 25
