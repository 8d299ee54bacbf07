"""Reviews of pods of several sizes: their bytes in, the bytes of their answer out, in this process; and over TLS."""

import asyncio
import gc
import json
import ssl
import statistics
import time
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec
from factories.cluster.admission import Json, container, gpu, pod, review_of
from factories.cluster.memory_store import MemoryStore

from sluice.runtime.clock import SystemClock
from sluice_pod_watcher.admission import AdmissionConfig, MalformedReview
from sluice_pod_watcher.shell.http_server import ListenAddress
from sluice_pod_watcher.shell.webhook.cert_generations import CertificateConfig
from sluice_pod_watcher.shell.webhook.cert_rotator import CertificateRotator, NoBundlePublisher, new_context
from sluice_pod_watcher.shell.webhook.cert_sources import RotatingCertificates
from sluice_pod_watcher.shell.webhook.handlers import answer_to, listening

RULES = AdmissionConfig(default_mode="auto", runtime_class="nvidia")


@dataclass(frozen=True)
class Times:
    """Milliseconds of many reviews of one kind, by the clock and of CPU, and the size of its question."""

    what: str
    kib: float
    p50_ms: float
    p99_ms: float
    cpu_p99_ms: float | None = None


def kinds() -> dict[str, Json]:
    """Questions, from the smallest to what is hardly ever sent."""
    env = [{"name": f"SETTING_{at}", "value": "x" * 40} for at in range(40)]
    notes = {f"example.com/note-{at}": "x" * 100 for at in range(100)}
    vgpu = gpu(gpu="2", gpumem="8000", gpucores="30")
    crowd = [container(f"c{at}", env=list(env), resources=vgpu if at < 4 else {}) for at in range(40)]
    return {
        "a profile, one container": review_of(pod(annotations={"sluice.dev/profile": "1g.5gb"})),
        "HAMi's resources, 3 containers with 40 variables": review_of(
            pod(container("main", env=env, resources=vgpu), container("a", env=env), container("b", env=env))
        ),
        "40 containers with 40 variables, 100 annotations": review_of(pod(*crowd, annotations=notes)),
        "a pod that asks for nothing": review_of(pod(container(env=env))),
        "a denial": review_of(pod(container(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}], resources=vgpu))),
    }


def in_process(rounds: int) -> list[Times]:
    """Each kind, one after another: decoding, judging, encoding."""
    found = []
    for what, question in kinds().items():
        body = json.dumps(question).encode()
        taken, cpu = [], []
        gc.collect()
        for _ in range(rounds):
            begin, cpu_begin = time.perf_counter(), time.thread_time()
            response = answer_to(body, RULES)
            if isinstance(response, MalformedReview):
                raise SystemExit(f"{what}: {response.why}")
            msgspec.json.encode(response.as_review())
            cpu.append((time.thread_time() - cpu_begin) * 1000)
            taken.append((time.perf_counter() - begin) * 1000)
        found.append(times(what, len(body), taken, cpu))
    return found


async def over_tls(rounds: int, at_once: int) -> list[Times]:
    """The first kind through the server on the loopback: one connection, and `at_once` of them together."""
    body = json.dumps(kinds()["a profile, one container"]).encode()
    context = new_context()
    source = RotatingCertificates(MemoryStore(), ("127.0.0.1",), CertificateConfig())
    keeper = CertificateRotator(context, source, NoBundlePublisher(), SystemClock())
    await keeper.refresh()
    if keeper.expires is None or keeper.expires < datetime.now(UTC):
        raise SystemExit(keeper.why_not_ready())
    trust = ssl.create_default_context(cadata=keeper.bundle)
    async with listening(RULES, context, keeper, ListenAddress("127.0.0.1", 0)) as port:
        alone = await _connection(port, trust, body, rounds)
        many = await asyncio.gather(*(_connection(port, trust, body, rounds // at_once) for _ in range(at_once)))
    together = [each for one in many for each in one]
    return [
        times("over TLS, one connection", len(body), alone),
        times(f"over TLS, {at_once} connections at once, client in the same process", len(body), together),
    ]


async def _connection(port: int, trust: ssl.SSLContext, body: bytes, rounds: int) -> list[float]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust)
    head = f"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    taken = []
    for _ in range(rounds):
        begin = time.perf_counter()
        writer.write(head + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in answer.split(b"\r\n") if line.lower().startswith(b"content-length"))
        await reader.readexactly(int(length.split(b":")[1]))
        taken.append((time.perf_counter() - begin) * 1000)
    writer.close()
    await writer.wait_closed()
    return taken


def times(what: str, size_bytes: int, taken: list[float], cpu: list[float] | None = None) -> Times:
    cuts = statistics.quantiles(taken, n=100)
    return Times(what, size_bytes / 1024, cuts[49], cuts[98], statistics.quantiles(cpu, n=100)[98] if cpu else None)
