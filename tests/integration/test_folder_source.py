"""The pod-watcher with a real folder, identities file and bus; the test plays the allocator."""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from factories.broker.memory_bus import MemoryBroker
from factories.processes import finished
from factories.waiting import meanwhile, until
from msgspec.structs import replace

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Stream
from sluice.contracts.ids import NodeName, RequestId, RunId
from sluice.runtime.clock import SystemClock
from sluice.runtime.service import EXIT_CONFIG, Service
from sluice.runtime.tracing.request_traces import RequestTraces
from sluice_pod_watcher.core.folder.events import FolderListed, FolderUnlistable, HostsKnown
from sluice_pod_watcher.settings import PodWatcherSettings
from sluice_pod_watcher.shell.folder.app import serve_on
from sluice_pod_watcher.shell.folder.identity_file import IdentityFile
from sluice_pod_watcher.shell.folder.manifest_folder import ManifestFolder

POD = """\
apiVersion: v1
kind: Pod
metadata:
  name: {name}
  annotations:
    sluice.dev/profile: "{profile}"
spec:
  containers:
    - name: main
"""
FLEET = """\
[[node]]
name = "gpu-1.example"
cpu_cores = 8
memory_mib = 1024
gpus = [{ model = "a100-40gb", count = 1 }]
"""
HOSTS = HostsKnown(((NodeName("gpu-1"), msg.HostFacts(cpu_cores=8, memory_mib=1024, pods_free=110)),))


@dataclass
class Site:
    """A folder, a bus, and its content."""

    broker: MemoryBroker
    pods: Path
    data: Path
    folder: "ToldFolder | None" = None
    """As the pod-watcher has it."""

    def write(self, name: str, profile: str = "1g.5gb") -> None:
        """A person saves a file as editors do: a new one, moved over the old one."""
        hidden = self.pods / f".{name}.tmp"
        hidden.write_text(POD.format(name=name, profile=profile), encoding="utf-8")
        hidden.replace(self.pods / f"{name}.yaml")

    def requests(self) -> dict[str, msg.AnyMessage]:
        now = self.broker.clock.monotonic()
        entries = self.broker.values.snapshot(Stream.STATE, ("sluice.request.>",), now)
        return {entry.subject.rpartition(".")[2]: entry.message for entry in entries if entry.message is not None}

    def synced(self) -> msg.SourceSynced | None:
        return self.broker.last("sluice.source.folder")


@pytest.fixture
def site(tmp_path) -> Site:
    (tmp_path / "pods").mkdir()
    return Site(MemoryBroker(), tmp_path / "pods", tmp_path / "data")


class ToldFolder(ManifestFolder):
    """A folder that records when it could not be listed."""

    unlistable = False

    async def list(self) -> FolderListed | FolderUnlistable:
        listed = await super().list()
        self.unlistable = self.unlistable or isinstance(listed, FolderUnlistable)
        return listed


@asynccontextmanager
async def watching(site: Site, run: str) -> AsyncIterator[None]:
    settings = PodWatcherSettings(pods_dir=site.pods, data_dir=site.data, relist_s=1.0, gone_grace_s=0.2, tick_s=0.05)
    clock = SystemClock()
    service = Service("pod-watcher", RunId(run), settings, clock, RequestTraces())
    site.folder = ToldFolder(site.pods, clock, settings.config().file_bytes_max)
    with IdentityFile(site.data / "pods") as identities:
        async with meanwhile(serve_on(site.broker.bus("pod-watcher"), service, site.folder, identities, HOSTS)):
            yield


async def test_a_pod_comes_changes_and_goes_as_its_file_does(site):
    """The whole life of a manifest, with the allocator's part played by the test."""
    async with watching(site, "w1"):
        await until(lambda: site.synced() is not None)
        assert site.broker.last("sluice.host.gpu-1").cpu_cores == 8
        site.write("train")
        await until(site.requests)
        ((uid, asked),) = site.requests().items()
        assert isinstance(asked, msg.AllocationRequested)
        assert (asked.origin, asked.owner, asked.claims[0].profile) == ("train.yaml", uid, "1g.5gb")
        site.write("train", profile="3g.20gb")
        await until(lambda: site.requests()[uid].revision == 2)
        await until(lambda: site.synced() is not None and site.synced().count == 1)
        (site.pods / "train.yaml").unlink()
        await until(lambda: isinstance(site.requests()[uid], msg.RequestWithdrawn))
        released = msg.Released(request=RequestId(uid), cause="pod gone")
        site.broker.put(subjects.binding(RequestId(uid)).subject, released)
        await until(lambda: site.requests()[uid].closing)
        site.write("train")
        await until(lambda: len(site.requests()) == 2)


async def test_a_pod_keeps_its_id_over_a_restart_and_a_wiped_broker(site):
    """A running pod is known by this id."""
    site.write("train")
    async with watching(site, "w1"):
        await until(site.requests)
        before = site.requests()
    async with watching(site, "w2"):
        await until(lambda: site.synced().run == "w2")
        assert site.requests() == before
        site.broker.wipe()
        await site.broker.bus("admin").ensure_streams()
        await until(lambda: site.synced() is not None)
        life = site.synced().incarnation
        assert site.requests() == {uid: replace(asked, incarnation=life) for uid, asked in before.items()}


async def test_a_folder_that_is_replaced_by_another_is_followed(site):
    """A mounted volume may be swapped; the new one is watched, and nothing ends while there is none."""
    site.write("train")
    async with watching(site, "w1"):
        await until(site.requests)
        before = site.requests()
        site.pods.rename(site.pods.with_name("old"))
        await until(lambda: site.folder.unlistable)
        assert site.requests() == before
        (site.pods.with_name("old")).rename(site.pods)
        site.write("second")
        await until(lambda: len(site.requests()) == 2)
        assert site.requests().items() >= before.items()


@pytest.mark.parametrize(
    ("missing", "words"),
    [("pods", "cannot be listed: No such file"), ("fleet", "cannot be read"), ("fleet key", "memry_mib")],
)
async def test_a_start_that_cannot_work_ends_with_one_sentence(tmp_path, missing, words):
    """No traceback, the exit code of a configuration error, at once."""
    pods, fleet = tmp_path / "pods", tmp_path / "fleet.toml"
    if missing != "pods":
        pods.mkdir()
    if missing != "fleet":
        fleet.write_text(FLEET.replace("memory_mib", "memry_mib") if missing == "fleet key" else FLEET)
    environment = {
        "PATH": os.environ["PATH"],
        "SLUICE_POD_WATCHER_PODS_DIR": str(pods),
        "SLUICE_DATA_DIR": str(tmp_path / "data"),
        "SLUICE_POD_WATCHER_FLEET_FILE": str(fleet),
    }
    code, _, said = await finished(sys.executable, "-m", "sluice_pod_watcher", environment=environment)
    assert code == EXIT_CONFIG
    assert words in said
    assert "Traceback" not in said
