"""The pod-watcher's Events arrive at an API server, whatever text is in them."""

import pytest
from fake_kube.server import FakeKube

from sluice.contracts.ids import RequestId, RunId
from sluice.runtime.clock import SystemClock
from sluice_pod_watcher.core.cluster.events import WriteEvent
from sluice_pod_watcher.shell.kube.api_writer import ApiWriter
from sluice_pod_watcher.shell.kube.client import KubeApi


@pytest.mark.parametrize("word", ["no room ", "配额已用完 ", "Übergröße ", "🚫"])
@pytest.mark.parametrize("characters", [10, 256, 900, 920])
async def test_an_event_in_any_script_is_written(kube: FakeKube, api: KubeApi, word: str, characters: int) -> None:
    """Another webhook's refusal in Chinese: `kubectl describe` would not show why the pod waits."""
    note = (word * characters)[:characters]
    said = WriteEvent(RequestId("u-1"), "default", "train", "train.1", "Warning", "SliceNotUsable", note)
    await ApiWriter(api, SystemClock(), RunId("r-1"), lambda: True).executors()[WriteEvent].run(said)
    (event,) = kube.all("events.events.k8s.io")
    written = event["note"]
    assert written == note or (written.endswith("...") and note.startswith(written.removesuffix("...")))
    assert len(written.encode()) >= min(len(note.encode()), 1020)
