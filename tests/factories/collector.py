"""An OTLP/HTTP collector on loopback, for tests: keeps what it is sent; or takes what is sent and never answers."""

import contextlib
import gzip
import threading
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Span:
    """One exported span."""

    service: str
    name: str
    own: bytes
    parent: bytes
    attributes: dict[str, str]
    links: tuple[str, ...]
    """The traces that it links to."""
    began_ns: int
    ended_ns: int


@dataclass
class Collector:
    """What was sent."""

    hangs: bool = False
    port: int = 0
    traces: dict[str, list[Span]] = field(default_factory=lambda: defaultdict(list))
    asked: threading.Event = field(default_factory=threading.Event)
    go: threading.Event = field(default_factory=threading.Event)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def hang(self) -> None:
        """From now on take what is sent, and answer nothing."""
        self.asked.clear()
        self.hangs = True

    def take(self, body: bytes) -> None:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            about = {each.key: each.value.string_value for each in resource.resource.attributes}
            for scope in resource.scope_spans:
                for span in scope.spans:
                    who = (about["service.name"], span.name, span.span_id, span.parent_span_id)
                    attributes = {each.key: str(each.value) for each in span.attributes}
                    links = tuple(link.trace_id.hex() for link in span.links)
                    times = (span.start_time_unix_nano, span.end_time_unix_nano)
                    self.traces[span.trace_id.hex()].append(Span(*who, attributes, links, *times))


@contextlib.contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if collector.hangs:
                collector.asked.set()
                collector.go.wait(60)
                return
            collector.take(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    collector.port = server.server_port
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield collector
    finally:
        collector.go.set()
        server.shutdown()
        thread.join()
        server.server_close()
