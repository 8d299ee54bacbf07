"""The alert for an absent API server counts only the watch, for one kind of object."""

import asyncio
import re

import pytest
from alerts_page import alerts
from factories.waiting import meanwhile, until
from fake_kube.server import FakeKube

from sluice.runtime.clock import SystemClock
from sluice.runtime.prometheus import metrics
from sluice_pod_watcher.core.cluster.events import Event
from sluice_pod_watcher.shell.kube.client import KubeApi
from sluice_pod_watcher.shell.kube.reflector import Reflector
from sluice_pod_watcher.shell.kube.webhook_certificates import SecretStore
from sluice_pod_watcher.shell.metrics import KUBE_TROUBLES, KUBE_WATCHES
from sluice_pod_watcher.shell.webhook.cert_sources import StoreUnavailableError

(ALERT,) = [each["expr"] for each in alerts() if each["alert"] == "SluiceApiServerAway"]


class Hasty(SystemClock):
    """A clock that sleeps less."""

    async def sleep(self, duration_s: float) -> None:
        await asyncio.sleep(min(duration_s, 0.01))


def counted() -> dict[str, float]:
    return {metric.name: sum(series.values()) for metric, series in metrics.PROCESS.samples().items()}


async def test_the_webhook_that_is_served_does_not_hide_that_the_watch_is_refused(api: KubeApi) -> None:
    """It reads its Secret every minute, with its own account: a 403 for the watch alone went unreported."""
    before = counted()
    with pytest.raises(StoreUnavailableError):  # answered, at least
        await SecretStore(api, "default", "sluice-webhook-tls").load()
    grown = {name for name, value in counted().items() if value > before.get(name, 0)}
    assert grown
    assert not grown & set(re.findall(r"sluice_[a-z_]+", ALERT))


@pytest.mark.parametrize("verb", ["list", "watch"])
async def test_of_what_is_refused_no_watch_is_counted(api: KubeApi, kube: FakeKube, verb: str) -> None:
    """The alert fires where troubles grow and watches do not; one missing right may be the cause."""

    async def offer(_event: Event) -> None:
        return

    of = lambda: [metrics.value(each, "pods") for each in (KUBE_TROUBLES, KUBE_WATCHES)]  # noqa: E731
    kube.faults.fail(10, code=403, verb=verb, path="pods")
    troubles, watches = of()
    async with meanwhile(Reflector(api, Hasty(), "pods", "/api/v1/pods", "", offer).run()):
        await until(lambda: of()[1] > watches)
        assert of()[0] == troubles + 10
    assert "sum by (what) (increase(sluice_kube_watch_troubles_total[5m])) > 0" in ALERT
    assert "unless sum by (what) (increase(sluice_kube_watches_total[5m])) > 0" in ALERT
