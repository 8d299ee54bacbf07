"""The webhook as an API server meets it: real sockets, real TLS, valid and invalid requests."""

import asyncio
import base64
import contextlib
import json
import ssl
from datetime import timedelta

import aiohttp
import pytest
import structlog
from factories.cluster.admission import container, gpu, pod, review_of
from factories.cluster.memory_store import MemoryStore
from factories.waiting import until

from sluice.runtime.clock import SystemClock
from sluice.runtime.errors import ServiceError
from sluice_pod_watcher.admission import AdmissionConfig
from sluice_pod_watcher.shell.http_server import ListenAddress
from sluice_pod_watcher.shell.webhook import handlers
from sluice_pod_watcher.shell.webhook.cert_generations import CertificateConfig
from sluice_pod_watcher.shell.webhook.cert_rotator import CertificateRotator, NoBundlePublisher, new_context
from sluice_pod_watcher.shell.webhook.cert_sources import CertificateUnavailableError, RotatingCertificates
from sluice_pod_watcher.shell.webhook.handlers import ServingLimits, listening, serve_webhook

ASKS = review_of(pod(annotations={"sluice.dev/memory": "4Gi"}))
BOUND_S = 60.0


class Caller:
    """An API server that trusts what the keeper published."""

    def __init__(self, port, keeper, session):
        self.port = port
        self.keeper = keeper
        self.session = session
        self._trust = {}

    async def post(self, path="/mutate", body=None, **more):
        data = body if body is not None else json.dumps(ASKS)
        url = f"https://127.0.0.1:{self.port}{path}"
        async with self.session.post(url, data=data, ssl=self.trust(), **more) as response:
            return response.status, await response.text()

    async def get(self, path):
        async with self.session.get(f"https://127.0.0.1:{self.port}{path}", ssl=self.trust()) as response:
            return response.status, await response.text()

    def trust(self):
        """A client's context: the same while the bundle is, because it holds the connections."""
        bundle = self.keeper.bundle
        return self._trust.setdefault(bundle, ssl.create_default_context(cadata=bundle))


@contextlib.asynccontextmanager
async def webhook(source=None, **limits):
    context = new_context()
    certificates = RotatingCertificates(MemoryStore(), ("127.0.0.1", "localhost"), CertificateConfig())
    keeper = CertificateRotator(context, source or certificates, NoBundlePublisher(), SystemClock())
    await keeper.refresh()
    address = ListenAddress("127.0.0.1", 0)
    async with (
        listening(AdmissionConfig(), context, keeper, address, limits=ServingLimits(**limits)) as port,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=BOUND_S)) as session,
    ):
        yield Caller(port, keeper, session)


async def end(writer):
    """Close a connection that the other side may have closed already."""
    writer.close()
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        await writer.wait_closed()


async def test_a_pod_is_reviewed_over_tls():
    """The path of every GPU pod: without it nothing starts."""
    async with webhook() as caller:
        status, text = await caller.post()
        response = json.loads(text)["response"]
        assert (status, response["allowed"], response["patchType"]) == (200, True, "JSONPatch")
        assert response["uid"] == ASKS["request"]["uid"]
        denied = review_of(pod(container(resources=gpu(gpu="1")), nodeName="gpu-1"))
        status, text = await caller.post(body=json.dumps(denied))
        assert (status, json.loads(text)["response"]["status"]["code"]) == (200, 403)


async def test_a_namespaces_mode_comes_by_the_path():
    """A review lacks the labels of its namespace; the API server chooses the path by them."""
    async with webhook() as caller:
        _, text = await caller.post("/mutate/mps")
        (warning,) = json.loads(text)["response"]["warnings"]
        assert warning == "main.sluice.dev/mode = 'mps': the default of this namespace, because the pod names no mode"
        assert (await caller.post("/mutate/nonsense"))[0] == 404


async def test_a_namespaces_hand_over_comes_by_the_path_too():
    """With and without a default mode: else its pods would get their devices in the way of another namespace."""
    async with webhook() as caller:
        for path, by_claim in (("", False), ("/tickets", False), ("/dra", True), ("/mps/dra", True), ("/mps", False)):
            _, text = await caller.post(f"/mutate{path}")
            patch = json.loads(base64.b64decode(json.loads(text)["response"]["patch"]))
            assert any(each["path"] == "/spec/resourceClaims" for each in patch) is by_claim, path
        assert (await caller.post("/mutate/dra/mps"))[0] == 404


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        (b"", 400, "the body is not JSON: Input data was truncated"),
        (b"{", 400, "the body is not JSON: Input data was truncated"),
        (b"\xff\xfe", 400, "the body is not JSON: JSON is malformed: invalid character (byte 0)"),
        (b"[" * 100_000, 400, "the body is not JSON: "),
        (b"{}", 400, "not an AdmissionReview: Object missing required field `apiVersion`"),
        (b" " * 200_000, 413, "Maximum request body size 150000 exceeded"),
    ],
)
async def test_a_bad_request_is_answered_in_a_sentence(body, status, text):
    """The operator reads why; no internals leak; the next pod is served."""
    async with webhook(body_bytes_max=150_000) as caller:
        found = await caller.post(body=body)
        assert found[0] == status
        assert found[1].startswith(text)
        assert "Traceback" not in found[1]
        assert (await caller.post())[0] == 200


async def test_a_wrong_path_or_method_is_answered_in_words():
    """A mistake in the webhook's configuration must be visible."""
    async with webhook() as caller:
        assert (await caller.get("/mutate"))[0] == 405
        assert (await caller.get("/nothing")) == (404, "404: Not Found")
        assert (await caller.get("/healthz")) == (200, "ok")
        assert (await caller.get("/readyz")) == (200, "ok")


async def test_a_defect_of_ours_is_told_without_its_insides(monkeypatch):
    """A traceback contains other people's pods."""

    def broken(_raw, _rules):
        raise RuntimeError("secret-of-another-pod")

    async with webhook() as caller:
        monkeypatch.setattr(handlers, "review_pod", broken)
        assert await caller.post() == (500, "the webhook failed; see its log")
        monkeypatch.undo()
        assert (await caller.post())[0] == 200


async def test_a_body_that_never_ends_is_given_up():
    """One stuck caller would hold the turn of all others."""

    async def dribble():
        yield b"{"
        await asyncio.sleep(BOUND_S)

    async with webhook(request_s=0.2, reviews_max=1) as caller:
        assert await caller.post(body=dribble()) == (408, "the request took longer than 0.2 s")
        assert (await caller.post())[0] == 200


async def test_a_caller_that_breaks_off_is_no_defect_of_ours():
    """An API server restarted: each review in flight was an error with a traceback, as if we had failed."""
    with structlog.testing.capture_logs() as logged:
        async with webhook() as caller:
            reader, writer = await asyncio.open_connection("127.0.0.1", caller.port, ssl=caller.trust())
            writer.write(b"POST /mutate HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 100\r\n\r\n{")
            async with asyncio.timeout(BOUND_S):
                assert (await reader.readline()).split()[1] == b"100", "it begins to read"
            writer.transport.abort()
            await until(lambda: [line for line in logged if "request" in line["event"]])
            await end(writer)
    (line,) = [line for line in logged if "request" in line["event"]]
    assert (line["log_level"], line["event"], line["status"]) == ("warning", "refused a request", 400)
    assert line["why"] == "the caller disconnected before its request was complete"


async def test_a_connection_that_says_nothing_is_closed():
    """Else idle connections use up the files of the process."""
    async with webhook(silence_s=2.0) as caller:
        for trust in (None, caller.trust()):
            reader, writer = await asyncio.open_connection("127.0.0.1", caller.port, ssl=trust)
            async with asyncio.timeout(BOUND_S):
                with contextlib.suppress(ConnectionResetError):
                    assert await reader.read() == b""
            await end(writer)
        assert (await caller.post())[0] == 200


async def test_a_connection_too_many_is_closed_and_the_others_go_on():
    """A flood would take the service down."""
    async with webhook(connections_max=1) as caller:
        assert (await caller.post())[0] == 200  # its connection is kept
        reader, writer = await asyncio.open_connection("127.0.0.1", caller.port, ssl=caller.trust())
        async with asyncio.timeout(BOUND_S):
            assert await reader.read() == b""
        await end(writer)
        assert (await caller.post())[0] == 200


async def test_many_reviews_at_once_are_all_answered():
    """A Deployment of hundreds of replicas is created in a burst."""
    async with webhook(reviews_max=4) as caller:
        answers = await asyncio.gather(*(caller.post() for _ in range(200)))
        assert {status for status, _ in answers} == {200}


async def test_a_new_certificate_does_not_cut_open_connections():
    """API servers keep their connections for hours; a cut one is a pod that is not created."""
    certificates = RotatingCertificates(
        MemoryStore(),
        ("127.0.0.1",),
        CertificateConfig(validity=timedelta(days=2), renew_before=timedelta(days=1), overlap=timedelta(0)),
    )

    class Changing:
        """Made for other names at each round, so that a new one is due."""

        def __init__(self):
            self.round = 0

        async def refresh(self, now, *, published):
            self.round += 1
            names = ("127.0.0.1", f"round-{self.round}.example")
            renewed = RotatingCertificates(certificates.store, names, certificates.config)
            return await renewed.refresh(now, published=published)

    async with webhook(source=Changing()) as caller:
        first = caller.trust()
        reader, writer = await asyncio.open_connection("127.0.0.1", caller.port, ssl=first)
        serial = writer.get_extra_info("peercert")["serialNumber"]
        await caller.keeper.refresh()
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(BOUND_S):
            assert (await reader.readline()) == b"HTTP/1.1 200 OK\r\n"
        await end(writer)
        _, again = await asyncio.open_connection("127.0.0.1", caller.port, ssl=caller.trust())
        assert again.get_extra_info("peercert")["serialNumber"] != serial
        await end(again)
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.open_connection("127.0.0.1", caller.port, ssl=first)


async def test_it_serves_until_it_is_told_to_stop_and_then_lets_go_of_its_port():
    """A rollout starts the next one on the same port."""
    context = new_context()

    class Nothing:
        async def refresh(self, now, *, published):
            raise CertificateUnavailableError("the Secret cannot be read")

    keeper = CertificateRotator(context, Nothing(), NoBundlePublisher(), SystemClock())
    async with webhook() as caller:
        taken = ListenAddress("127.0.0.1", caller.port)
        with pytest.raises(ExceptionGroup) as failed:
            await serve_webhook(AdmissionConfig(), context, keeper, taken)
        (error,) = failed.value.exceptions
        assert isinstance(error, ServiceError)
        assert str(error).startswith(f"the webhook cannot listen on 127.0.0.1:{caller.port}: ")
    serving = asyncio.create_task(serve_webhook(AdmissionConfig(), context, keeper, taken))
    yet = (ConnectionRefusedError,)
    _, writer = await until(lambda: asyncio.open_connection("127.0.0.1", caller.port), "it listens", yet=yet)
    await end(writer)
    assert keeper.why_not_ready() == "there is no certificate yet: the Secret cannot be read"
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
