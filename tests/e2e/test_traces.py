"""A pod's traces over real processes: a trace viewer shows its whole way as one tree."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from cluster.harness.binaries import EXTRAS, BuildError, kept
from factories.collector import Collector, Span, collecting
from factories.jaeger import Jaeger, jaeger_in
from factories.system import Running, fleet_text, standing, up, wait_for
from factories.trace_attributes import KEYS

from sluice.contracts.bus.trace_headers import trace_id

EXPORT_S = 25.0
"""Exporters send in batches, every few seconds."""
SERVICES = {"sluice-pod-watcher", "sluice-allocator", "sluice-node-agent", "sluice-inventory"}
OF_CLOCKS = "clock skew adjustment disabled"
"""What Jaeger notes at each span that ends after its parent, as the handling of a message does."""
PULL = "sluice.v1.AgentService/GetInventory"


@pytest.mark.slow
def test_a_pods_way_is_one_connected_tree_and_its_release_another(tmp_path):
    """From manifest to binding and back, over four processes and a call; a hanging collector delays nothing."""
    there = (
        "request seen, publish AllocationRequested, queue wait, decide, publish Grant, make slice, CreateGpuInstance, "
        "CreateComputeInstance, VerifyInstance, MakeTicket, publish SliceReady, publish Bound, request seen to bound, "
        f"publish NodeChanged, {PULL}, publish NodeInventory"
    )
    back = (
        "request given back, publish RequestWithdrawn, publish Revoke, deliver Revoke, unmake slice, "
        "DestroyGpuInstance, publish SliceGone, publish Released"
    )
    with collecting() as collector:
        with _collected(tmp_path, collector) as running:
            request = served(running)
            first = when_whole(running, collector, trace_id(request), set(there.split(", ")))
            running.remove("pod")
            second = when_whole(running, collector, trace_id(request, "release"), set(back.split(", ")))
            shown = running.sluice("trace", "pod")
            collector.hang()
            served(running, "another")
            assert collector.asked.wait(EXPORT_S)
            running.remove("another")
            wait_for(lambda: not standing(running).booked, EXPORT_S, running)
        logs = "".join(log.read_text() for log in (running.data / "logs").glob("*"))
    assert "ended without finishing" not in logs
    assert trace_id(request) in logs  # lines of a log are found from a trace, and the other way round
    assert shown.returncode == 0, shown.stderr
    for what in (trace_id(request), trace_id(request, "release"), "make GPU instance", "unmake GPU instance", "Bound"):
        assert what in shown.stdout
    (root,) = roots(first)
    assert (root.service, root.name, root.parent) == ("sluice-pod-watcher", "request seen", b"")
    assert {span.service for span in first} == SERVICES
    (root,) = roots(second)
    assert (root.service, root.name, root.links) == ("sluice-pod-watcher", "request given back", (trace_id(request),))
    assert {"sluice-pod-watcher", "sluice-allocator", "sluice-node-agent"} <= {span.service for span in second}
    for trace in collector.traces.values():
        assert {key for span in trace for key in span.attributes} <= KEYS
        assert all(span.ended_ns >= span.began_ns for span in trace)
    assert set(collector.traces) == {trace_id(request), trace_id(request, "release")}


def served(running: Running, name: str = "pod") -> str:
    """The request of the only pod, which is bound when this returns."""
    running.write(name)
    wait_for(lambda: standing(running).bound, EXPORT_S, running)
    (request,) = standing(running).bound
    return request


def when_whole(running: Running, collector: Collector | Jaeger, trace: str, wanted: set[str]) -> list[Span]:
    """A trace once all that is wanted is there, both sides of calls, and every span's parent."""
    found: list[Span] = []

    def look() -> bool:
        found[:] = collector.traces[trace]
        callers = {span.service for span in found if span.name == PULL}
        called = PULL not in wanted or callers == {"sluice-inventory", "sluice-node-agent"}
        return wanted <= {span.name for span in found} and called and len(roots(found)) == 1

    wait_for(look, EXPORT_S, running)
    return found


def roots(trace: list[Span]) -> list[Span]:
    """The spans whose parent is not in the trace."""
    known = {span.own for span in trace}
    return [span for span in trace if span.parent not in known]


@pytest.fixture
def jaeger(tmp_path) -> Iterator[Jaeger]:
    try:
        program = kept(EXTRAS["jaeger"]) / "jaeger"
    except BuildError as error:
        pytest.skip(str(error))
    with jaeger_in(tmp_path, program) as running:
        yield running


@pytest.mark.slow
def test_a_real_jaeger_shows_a_pods_way_over_all_services_as_one_trace(tmp_path, jaeger):
    """Our own collector keeps whatever it is sent; a viewer drops, splits or repairs what it does not understand."""
    with _collected(tmp_path, jaeger) as running:
        request = served(running)
        first = when_whole(running, jaeger, trace_id(request), {"request seen", "queue wait", PULL, "publish Bound"})
        running.remove("pod")
        second = when_whole(running, jaeger, trace_id(request, "release"), {"request given back", "publish Released"})
        shown = jaeger.ask("services")
        (trace,) = jaeger.ask(f"traces/{trace_id(request)}")
        warned = {text for span in trace["spans"] for text in span["warnings"] or () if not text.startswith(OF_CLOCKS)}
    assert {span.service for span in first} == SERVICES == set(shown)
    assert warned == set()
    (root,) = roots(first)
    assert (root.service, root.name, root.parent) == ("sluice-pod-watcher", "request seen", b"")
    assert "pod" in {span.attributes.get("k8s.pod.name") for span in first}
    (root,) = roots(second)
    assert (root.name, root.links) == ("request given back", (trace_id(request),))


@pytest.mark.slow
def test_a_restarted_agent_makes_the_trace_of_a_pod_no_longer(tmp_path):
    """The trace of a pod that had its slice in a fifth of a second would read "8 min 51 s"."""
    with collecting() as collector, _collected(tmp_path, collector) as running:
        request = served(running)
        way = when_whole(running, collector, trace_id(request), {"publish Bound", "request seen to bound"})
        ended_ns = max(span.ended_ns for span in way)
        wait_for(lambda: _words(running).count("AllocationRequested") == 2, EXPORT_S, running)  # now with what it has
        before = running.json("trace", "pod")["parts"]
        (agent,) = running.children("sluice_node_agent")
        agent.kill()
        later = when_whole(running, collector, trace_id(request, "running"), {"publish SliceReady"})
        after = running.json("trace", "pod")["parts"]
        (root,) = roots(later)
        again = collector.traces[trace_id(request)]
    assert [part["part"] for part in before] == ["request"]
    assert [part["part"] for part in after] == ["request", "running"]
    assert after[0] == before[0]
    assert (root.name, root.links) == ("request runs", (trace_id(request),))
    assert min(span.began_ns for span in later) > ended_ns
    assert max(span.ended_ns for span in again) < min(span.began_ns for span in later)


def _collected(folder: Path, collector: Collector | Jaeger) -> AbstractContextManager[Running]:
    return up(folder, fleet_text(1, 1), environment={"SLUICE_OTLP_ENDPOINT": collector.endpoint})


def _words(running: Running) -> list[str]:
    """The names of what `sluice trace` shows of the pod's way to its slice."""
    return [span["name"] for span in running.json("trace", "pod")["parts"][0]["spans"]]
