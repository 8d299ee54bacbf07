"""Sluice's admission on a real API server of this machine, by URL at the loopback, beside an installed one."""

import asyncio
import base64
import contextlib
import secrets
import ssl
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from aiohttp import web
from factories.cluster.kubernetes import LABEL_TEST, Cluster, Json, pod
from factories.cluster.played_nodes import played
from fake_kube import certificates

from sluice_pod_watcher.admission import AdmissionConfig, MalformedReview, review_pod

PATH = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
READY_WITHIN_S = 90.0
_ASKS = {"sluice.dev/profile": "1g.5gb"}


@contextlib.contextmanager
def played_webhook(cluster: Cluster, folder: Path, config: AdmissionConfig | None = None) -> Iterator[None]:
    """Pods of the tests' namespaces are admitted as by Sluice while the context lasts."""
    admission = config if config is not None else AdmissionConfig()
    play = partial(_play, Cluster(cluster.kubeconfig, cluster.fake), folder, admission)
    with played(play, "the webhook is not in effect", within_s=READY_WITHIN_S):
        yield


async def _play(
    cluster: Cluster, folder: Path, config: AdmissionConfig, ready: threading.Event, ending: threading.Event
) -> None:
    made = certificates.make("review", folder=folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.certificate, made.key)
    app = web.Application()
    app.router.add_post("/mutate", partial(_review, config))
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    name = f"sluice-test-{secrets.token_hex(4)}"
    async with cluster.opened() as kube:
        try:
            configuration = _configuration(name, runner.addresses[0][1], made.authority.read_bytes())
            await kube.create(PATH, configuration)
            await _until_in_effect(kube)
            ready.set()
            await asyncio.to_thread(ending.wait)
        finally:
            await kube.delete(f"{PATH}/{name}")
            await runner.cleanup()
    # A server's connection that is still in its TLS handshake is not one of the runner's, and would stay open.
    for transport in list(asyncio.get_running_loop()._transports.values()):
        transport.abort()
    await asyncio.sleep(0)


async def _review(config: AdmissionConfig, request: web.Request) -> web.Response:
    response = review_pod(await request.json(), config)
    if isinstance(response, MalformedReview):
        return web.Response(status=400, text=response.why)
    return web.json_response(response.as_review())


def _configuration(name: str, port: int, authority: bytes) -> Json:
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    hook = {
        "name": "review.test.sluice.dev",
        "rules": [rule],
        "clientConfig": {"url": f"https://127.0.0.1:{port}/mutate", "caBundle": base64.b64encode(authority).decode()},
        "namespaceSelector": {"matchExpressions": [{"key": LABEL_TEST, "operator": "Exists"}]},
        "sideEffects": "None",
        "reinvocationPolicy": "IfNeeded",
        "admissionReviewVersions": ["v1"],
    }
    return {"metadata": {"name": name, "labels": {LABEL_TEST: "true"}}, "webhooks": [hook]}


async def _until_in_effect(kube: Cluster) -> None:
    """A real API server calls a new webhook some moments after its registration."""
    name = await kube.namespace()
    pods = f"/api/v1/namespaces/{name}/pods"
    asking = pod(gates=(), annotations=_ASKS)
    await kube.until(
        lambda: kube.post(pods, asking, dryRun="All"),
        lambda reply: reply.code == 201 and bool(reply.body["spec"].get("schedulingGates")),
    )
    await kube.delete(f"/api/v1/namespaces/{name}")
