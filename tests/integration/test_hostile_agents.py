"""Agents that answer what no agent of ours would: their node is not used, and callers go on."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from factories.inventory import NODE, gpu_report, snapshot

from sluice.contracts.ids import GpuUuid, NodeName, RunId
from sluice.contracts.messages import AgentAddress
from sluice.contracts.pb import node_pb2
from sluice.contracts.proto.snapshots import snapshot_to_proto
from sluice.runtime.bus import BusError
from sluice.runtime.clock import SystemClock
from sluice.runtime.grpc import transport
from sluice.runtime.grpc.security import LOOPBACK
from sluice.runtime.grpc.usage_client import ask_agents
from sluice_console.shell.live import agent_snapshots
from sluice_inventory.core.events import Pull, PullFailed
from sluice_inventory.shell.puller import SNAPSHOT_BYTES_MAX, Puller

WORDS_MAX = 700
"""What is said of a pull that failed is some hundred characters, whatever was answered."""
LONG = "x" * 300_000
OVER_THE_LIMIT = f"bytes is over the limit of {SNAPSHOT_BYTES_MAX}"
NOT_OURS = b"\xff not ours"


@asynccontextmanager
async def agent(answer: bytes, details: str = "") -> AsyncIterator[str]:
    """Something that answers every question to an agent with these bytes, or fails with this text."""

    async def said(_question: bytes, context: grpc.aio.ServicerContext) -> bytes:
        if details:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, details)
        return answer

    handlers = {name: grpc.unary_unary_rpc_method_handler(said) for name in ("GetInventory", "GetUsage")}
    handler = grpc.method_handlers_generic_handler("sluice.v1.AgentService", handlers)
    async with transport.serve(lambda server: server.add_generic_rpc_handlers((handler,))) as endpoint:
        yield endpoint


async def why_not_pulled_at(endpoint: str) -> str:
    puller = Puller(SystemClock(), timeout_s=2.0)
    try:
        found = await puller.pull(Pull(NODE, endpoint))
    finally:
        await puller.close()
    assert isinstance(found, PullFailed)
    return found.message


async def why_not_pulled(answer: bytes, details: str = "") -> str:
    """What comes of a pull of an agent that answers so."""
    async with agent(answer, details) as endpoint:
        return await why_not_pulled_at(endpoint)


def of(**changes: Any) -> bytes:
    """The answer of an agent with such a snapshot."""
    return snapshot_to_proto(snapshot(**changes)).SerializeToString()


def in_later_state(allocation: str) -> bytes:
    """The answer of an agent whose slice is in a state of a later version."""
    answer = snapshot_to_proto(snapshot())
    answer.slices.add(booking=node_pb2.Booking(allocation=allocation), state=99)
    return answer.SerializeToString()


def below_zero() -> bytes:
    """The answer of an agent whose instance starts before its GPU."""
    answer = snapshot_to_proto(snapshot())
    answer.gpus[0].instances.add(gi_id=1, profile="1g.5gb", start=-1, size=1)
    return answer.SerializeToString()


def fitting(count: int) -> bytes:
    """The answer of an agent whose GPU takes so many instances."""
    return of(gpus=(gpu_report(creatable={"1g.5gb": count}),))


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (NOT_OURS, "its answer is not a message of Sluice"),
        (of(gpus=tuple(gpu_report(uuid=GpuUuid(f"GPU-{number}")) for number in range(4000))), OVER_THE_LIMIT),
        (of(driver_version="\x01" * 300_000), OVER_THE_LIMIT),
        (in_later_state("a_1"), "slice a_1 is in state 99, which is unknown here"),
        (below_zero(), "Expected `int` >= 0 - at `$.gpus[0].instances[0].start`"),
        (fitting(2**31 - 1), "GPU-1 says that 2147483647 instances of 1g.5gb fit on it"),
        (fitting(1025), "GPU-1 says that 1025 instances of 1g.5gb fit on it"),
        (fitting(-1), "GPU-1 says that -1 instances of 1g.5gb fit on it"),
    ],
    ids=["no message", "many GPUs", "long once escaped", "later state", "below zero", "huge", "too many", "negative"],
)
async def test_an_unreadable_or_unbelievable_answer_is_a_failed_pull(answer, why):
    """The inventory would crash after each start, or publish nonsense about the whole fleet."""
    assert (await why_not_pulled(answer)).endswith(why)


async def test_an_answer_over_the_grpc_limit_is_a_failed_pull(monkeypatch):
    """An agent that sends without end is cut off by the channel."""
    monkeypatch.setattr(transport, "_CHANNEL_OPTIONS", (("grpc.max_receive_message_length", 1000),))
    assert "RESOURCE_EXHAUSTED" in await why_not_pulled(of(driver_version="x" * 2000))


async def test_who_asks_agents_for_a_person_is_told_of_an_answer_that_is_no_message(monkeypatch):
    """`sluice usage` and `sluice demo` would end with a traceback, for one node of many."""
    monkeypatch.setattr(agent_snapshots, "trusted", lambda: LOOPBACK)
    async with agent(NOT_OURS) as endpoint:
        addresses = {NODE: AgentAddress(endpoint)}
        assert await ask_agents(addresses, LOOPBACK) == {NODE: "INTERNAL: its answer is not a message of Sluice"}
        with pytest.raises(BusError, match="its answer is not a message of Sluice"):
            await agent_snapshots.snapshots(addresses)


@pytest.mark.parametrize(
    ("answer", "refusal"),
    [
        pytest.param(of(node=NodeName(LONG)), "", id="node"),
        pytest.param(of(agent_run=RunId(LONG)), "", id="run"),
        pytest.param(of(boot_id=LONG), "", id="boot"),
        pytest.param(of(gpus=(gpu_report(uuid=GpuUuid(LONG)),)), "", id="uuid"),
        pytest.param(of(gpus=(gpu_report(model=LONG),)), "", id="model"),
        pytest.param(of(gpus=(gpu_report(creatable={LONG: 1}),)), "", id="profile"),
        pytest.param(in_later_state(LONG), "", id="allocation"),
        pytest.param(b"", "y" * 4000, id="refusal"),
    ],
)
async def test_a_long_name_or_refusal_is_told_in_some_hundred_characters(answer, refusal):
    """The message that its node is stale would be too large for the bus, and the inventory would end every 30 s."""
    assert len(await why_not_pulled(answer, refusal)) <= WORDS_MAX


@pytest.mark.parametrize("end", ["", LONG], ids=["short", "long"])
@pytest.mark.parametrize(
    "begin",
    ["", "no such host.invalid:1", "127.0.0.1:0", "127.0.0.1:1/", "gpu-1.example:", "unix:/nowhere/at/all", "::::"],
)
async def test_an_endpoint_that_is_none_is_a_failed_pull_told_in_some_hundred_characters(begin, end):
    """Agents say themselves where they are: whatever one announces, the inventory goes on."""
    assert len(await why_not_pulled_at(begin + end)) <= WORDS_MAX
