"""A cluster with the webhook configuration as it is shipped, and the webhook behind it over TLS."""

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import yaml
from factories.cluster.kubernetes import Cluster
from factories.cluster.memory_store import MemoryStore
from fake_kube.server import FakeKube

from sluice.runtime.clock import SystemClock
from sluice_pod_watcher.admission import AdmissionConfig
from sluice_pod_watcher.shell.http_server import ListenAddress
from sluice_pod_watcher.shell.webhook.cert_generations import CertificateConfig
from sluice_pod_watcher.shell.webhook.cert_rotator import CertificateRotator, NoBundlePublisher, new_context
from sluice_pod_watcher.shell.webhook.cert_sources import RotatingCertificates
from sluice_pod_watcher.shell.webhook.handlers import listening

SERVICE, NAMESPACE = "sluice-webhook", "sluice-system"
SHIPPED = Path(__file__).resolve().parents[3] / "deploy" / "kubernetes" / "base" / "admission" / "webhook.yaml"
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


@asynccontextmanager
async def webhook_cluster(kubeconfig: Path) -> AsyncIterator[Cluster]:
    """The fake API server, which calls the webhook as a real one was seen to do."""
    context = new_context()
    source = RotatingCertificates(MemoryStore(), (f"{SERVICE}.{NAMESPACE}.svc",), CertificateConfig())
    keeper = CertificateRotator(context, source, NoBundlePublisher(), SystemClock())
    await keeper.refresh()
    with FakeKube() as fake:
        async with (
            listening(AdmissionConfig(), context, keeper, ListenAddress("127.0.0.1", 0)) as port,
            Cluster(fake.kubeconfig(kubeconfig), fake).opened() as opened,
        ):
            fake.route_service(NAMESPACE, SERVICE, host="127.0.0.1", port=port)
            configuration = yaml.safe_load(SHIPPED.read_text(encoding="utf-8"))
            for hook in configuration["webhooks"]:
                bundle = base64.b64encode(keeper.bundle.encode()).decode()
                hook["clientConfig"] = {**hook["clientConfig"], "caBundle": bundle}
            await opened.create(CONFIGURATIONS, configuration)
            yield opened
