"""Whether the health service answers a kubelet's probes correctly."""

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace

import grpc
import pytest
import structlog
from factories.broker.memory_bus import MemoryBroker, MemoryBus
from factories.waiting import until

from sluice.contracts.bus.events import Stream
from sluice.contracts.pb import health_pb2, health_pb2_grpc
from sluice.runtime.clock import SystemClock
from sluice.runtime.core_runner import CoreRunner
from sluice.runtime.grpc import transport
from sluice.runtime.grpc.health import STUCK_S, Health
from sluice.runtime.nats_server.free_ports import free_ports
from sluice.runtime.settings import TICK_MAX_S, SettingsError, load
from sluice.runtime.tracing.request_traces import RequestTraces, connect
from sluice_allocator.settings import AllocatorSettings
from sluice_inventory.settings import InventorySettings
from sluice_node_agent.settings import NodeAgentSettings

SERVING, NOT_SERVING = (getattr(health_pb2.HealthCheckResponse, name) for name in ("SERVING", "NOT_SERVING"))


class _Clock(SystemClock):
    def __init__(self) -> None:
        self.further_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.further_s


def a_runner(clock: _Clock) -> SimpleNamespace:
    return SimpleNamespace(turned_at=clock.monotonic(), caught_up=True)


@asynccontextmanager
async def answering(health: Health):
    address = f"127.0.0.1:{free_ports(1)[0]}"
    async with transport.serve_health(address, health):
        yield address


async def probed(address: str, service: str = "") -> int:
    async with transport.channel(address) as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service))
    return answer.status


async def test_a_part_that_starts_is_alive_and_not_ready():
    """A rollout would go on to the next node before this one works."""
    health = Health(_Clock(), parts=("gpu-1",))
    async with answering(health) as address:
        assert (await probed(address, "liveness"), await probed(address, "readiness")) == (SERVING, NOT_SERVING)
        assert await probed(address) == NOT_SERVING
        assert health.why_not_ready() == "gpu-1 is starting"


async def test_an_absent_broker_does_not_affect_liveness():
    """Every service would be restarted repeatedly, and lose what it knows."""
    clock, connected = _Clock(), [True]
    health = Health(clock, parts=("allocator",))
    runner = a_runner(clock)
    with health.runs("allocator", runner, lambda: connected[0]):
        assert (health.why_not_alive(), health.why_not_ready()) == ("", "")
        connected[0] = False
        assert (health.why_not_alive(), health.why_not_ready()) == ("", "allocator is not connected to the bus")
        connected[0], runner.caught_up = True, False
        assert health.why_not_ready() == "allocator has not read the bus to its end yet"
    assert health.why_not_ready() == "allocator is starting"


async def test_what_a_process_needs_besides_its_cores_counts_for_readiness_only():
    health, why = Health(_Clock()), [""]
    health.need(lambda: why[0])
    assert health.why_not_ready() == ""
    why[0] = "the disk is full"
    assert (health.why_not_alive(), health.why_not_ready()) == ("", "the disk is full")


async def test_a_core_without_a_turn_is_dead():
    """It may hold the lease, decides nothing, and would not be restarted."""
    clock = _Clock()
    health = Health(clock, parts=("gpu-1", "gpu-2"))
    one, other = (health.runs(part, a_runner(clock), lambda: True) for part in ("gpu-1", "gpu-2"))
    with one, other:
        assert health.why_not_alive() == ""
        clock.further_s = STUCK_S + 1
        assert health.why_not_alive() == health.why_not_ready() == "the core of gpu-1 has had no turn for 31 s"


async def test_a_real_core_has_its_turns_and_says_when_it_has_read_all():
    clock, bus, core = _Clock(), MemoryBus(MemoryBroker()), SimpleNamespace(handle=lambda _event, _now: ())
    await bus.ensure_streams()
    traces = connect("", service="test", run="r")
    assert isinstance(traces, RequestTraces)
    runner = CoreRunner(
        name="idle", core=core, bus=bus, clock=clock, traces=traces, readings=[(Stream.STATE, ())], tick_s=0.01
    )
    health = Health(clock, parts=("idle",))
    with health.runs("idle", runner, lambda: bus.connected):
        assert health.why_not_ready() == "idle has not read the bus to its end yet"
        running = asyncio.ensure_future(runner.run())
        try:
            await until(lambda: not health.why_not_ready(), within_s=10)
            clock.further_s = STUCK_S + 1  # as if the machine had been asleep: the next turn fixes it
            assert "no turn" in health.why_not_alive()
            await until(lambda: not health.why_not_alive(), within_s=10)
            bus.connected = False
            assert health.why_not_ready() == "idle is not connected to the bus"
        finally:
            running.cancel()
            await asyncio.wait((running,))
    traces.close()


@pytest.mark.parametrize(
    ("service", "settings"),
    [("allocator", AllocatorSettings), ("inventory", InventorySettings), ("node-agent", NodeAgentSettings)],
)
@pytest.mark.parametrize("tick_s", ["60", "inf", "nan"])
def test_no_service_can_be_told_to_tick_so_rarely_that_it_is_taken_for_stuck(service, settings, tick_s):
    """On a quiet cluster its kubelet would kill it every half minute."""
    environ = {f"SLUICE_{service.replace('-', '_').upper()}_TICK_S": tick_s}
    with pytest.raises(SettingsError, match=r"tick_s|TICK_S"):
        load(settings, service=service, environ=environ)
    assert 2 * TICK_MAX_S < STUCK_S


async def test_a_question_about_something_else_is_answered_as_the_protocol_says():
    """A misspelt probe does not look like a service that does not work."""
    async with answering(Health(_Clock())) as address:
        assert await probed(address) == SERVING  # nothing has to run here
        with pytest.raises(grpc.aio.AioRpcError, match="there is no 'livenes' here, but liveness and readiness"):
            await probed(address, "livenes")


async def test_the_reason_is_in_the_log_once():
    """A probe comes every few seconds, and only says no."""
    clock = _Clock()
    health = Health(clock, parts=("allocator",))
    with structlog.testing.capture_logs() as logged:
        async with answering(health) as address:
            for _ in range(3):
                await probed(address)
            with health.runs("allocator", a_runner(clock), lambda: True):
                for _ in range(3):
                    await probed(address)
    assert [(entry["event"], entry.get("why")) for entry in logged] == [
        ("not ready", "allocator is starting"),
        ("ready", None),
    ]


async def test_probes_are_answered_beyond_the_loopback_and_nowhere_unless_asked_for():
    """A kubelet connects from the node, has no TLS, and learns yes or no."""
    async with transport.serve_health("0.0.0.0:0", Health(_Clock())), transport.serve_health("", Health(_Clock())):
        pass
