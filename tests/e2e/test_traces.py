"""One pod, one trace: whoever looks into a trace viewer sees its whole way through the services as one tree."""

import gzip
import threading
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from factories.system import fleet_text, up, wait_for
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

EXPORT_S = 25.0
"""Exporters send in batches, every few seconds."""


@dataclass(frozen=True)
class Span:
    """One exported span."""

    service: str
    name: str
    own: bytes
    parent: bytes


@dataclass
class Receiver:
    """An OTLP/HTTP receiver on loopback."""

    port: int = 0
    traces: dict[bytes, list[Span]] = field(default_factory=lambda: defaultdict(list))

    def take(self, body: bytes) -> None:
        """One export."""
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            attributes = {each.key: each.value.string_value for each in resource.resource.attributes}
            for scope in resource.scope_spans:
                for span in scope.spans:
                    found = Span(attributes["service.name"], span.name, span.span_id, span.parent_span_id)
                    self.traces[span.trace_id].append(found)

    def story(self) -> list[Span]:
        """The longest trace so far."""
        return max(list(self.traces.values()), key=len, default=[])


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """Listens while the test runs."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.take(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.port = server.server_port
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield receiver
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_pods_way_is_one_connected_tree_over_all_services(tmp_path, receiver):
    """From the manifest that was seen to the slice that is ready and the binding: one root, no loose end."""
    environment = {"SLUICE_OTLP_ENDPOINT": f"http://127.0.0.1:{receiver.port}"}
    wanted = {"publish AllocationRequested", "publish Grant", "publish SliceReady", "publish Bound"}
    with up(tmp_path, fleet_text(1, 1), environment=environment) as running:
        running.write("pod")
        wait_for(lambda: wanted <= {span.name for span in receiver.story()}, EXPORT_S, running)
        wait_for(lambda: len(roots(receiver.story())) == 1, EXPORT_S, running)  # a parent may be exported later

    story = receiver.story()
    assert [span.service for span in roots(story)] == ["sluice-pod-watcher"]
    assert {span.service for span in story} == {"sluice-pod-watcher", "sluice-allocator", "sluice-node-agent"}


def roots(story: list[Span]) -> list[Span]:
    """The spans whose parent is not in the trace."""
    known = {span.own for span in story}
    return [span for span in story if span.parent not in known]
