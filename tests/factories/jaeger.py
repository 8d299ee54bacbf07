"""A real Jaeger in memory, on loopback: what a user of traces sees of a system."""

import contextlib
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from factories.collector import Span
from factories.processes import answering

from sluice.runtime.nats_server.free_ports import free_ports

CONFIG = """
service:
  extensions: [jaeger_storage, jaeger_query]
  pipelines:
    traces: {{receivers: [otlp], processors: [batch], exporters: [jaeger_storage_exporter]}}
  telemetry: {{metrics: {{level: none}}}}
extensions:
  jaeger_query:
    storage: {{traces: memory}}
    http: {{endpoint: "127.0.0.1:{query}"}}
    grpc: {{endpoint: "127.0.0.1:{grpc}"}}
  jaeger_storage: {{backends: {{memory: {{memory: {{max_traces: 1000}}}}}}}}
receivers:
  otlp: {{protocols: {{http: {{endpoint: "127.0.0.1:{otlp}"}}}}}}
processors: {{batch: {{}}}}
exporters: {{jaeger_storage_exporter: {{trace_storage: memory}}}}
"""
"""All in one process, as its own default does it, on ports of our own."""


@dataclass(frozen=True)
class Jaeger:
    """Asked as its own page asks it. `traces` has what it shows, as the tests' collector has what it is sent."""

    otlp: int
    query: int

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.otlp}"

    @property
    def traces(self) -> "Jaeger":
        return self

    def __getitem__(self, trace: str) -> list[Span]:
        """The spans of what it takes for one trace; none if it has no such."""
        found = self.ask(f"traces/{trace}")
        if not found:
            return []
        (one,) = found
        assert one["traceID"] == trace
        services = {key: process["serviceName"] for key, process in one["processes"].items()}
        return [_span(trace, services[each["processID"]], each) for each in one["spans"]]

    def ask(self, path: str) -> list[Any]:
        """The answer's data, empty if it knows nothing of it."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.query}/api/{path}", timeout=10) as answer:
                return json.load(answer)["data"] or []
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return []
            raise


def _span(trace: str, service: str, span: dict[str, Any]) -> Span:
    parents = [each["spanID"] for each in span["references"] if each["refType"] == "CHILD_OF"]
    return Span(
        service,
        span["operationName"],
        bytes.fromhex(span["spanID"]),
        bytes.fromhex(parents[0]) if parents else b"",
        {tag["key"]: str(tag["value"]) for tag in span["tags"]},
        tuple(each["traceID"] for each in span["references"] if each["traceID"] != trace),
        span["startTime"] * 1000,
        (span["startTime"] + span["duration"]) * 1000,
    )


@contextlib.contextmanager
def jaeger_in(folder: Path, program: Path) -> Iterator[Jaeger]:
    otlp, query, grpc = free_ports(3)
    config = folder / "jaeger.yaml"
    config.write_text(CONFIG.format(otlp=otlp, query=query, grpc=grpc))
    jaeger = Jaeger(otlp, query)
    with answering([str(program), "--config", str(config)], folder / "jaeger.log", lambda: jaeger.ask("services")):
        yield jaeger
