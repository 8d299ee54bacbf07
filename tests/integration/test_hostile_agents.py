"""Agents that answer what no agent of ours would: their node is not used, and callers go on."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest
from factories.inventory import NODE, gpu_report, snapshot

from sluice.contracts.ids import GpuUuid, NodeName, RunId
from sluice.contracts.messages import AgentAddress, NodeSnapshot
from sluice.contracts.pb import node_pb2
from sluice.contracts.proto.snapshots import snapshot_to_proto
from sluice.runtime.bus import BusError
from sluice.runtime.clock import SystemClock
from sluice.runtime.grpc import transport
from sluice.runtime.grpc.security import LOOPBACK
from sluice.runtime.grpc.usage_client import ask_agents
from sluice_console.shell.live import agent_snapshots
from sluice_inventory.core.events import Pull, PullFailed
from sluice_inventory.shell.puller import Puller

WORDS_MAX = 700
"""What is said of a pull that failed is some hundred characters, whatever was answered."""
LONG = "x" * 300_000
NOT_OURS = b"\xff not ours"


@asynccontextmanager
async def agent(answer: bytes, details: str = "") -> AsyncIterator[str]:
    """Something that answers every question to an agent with these bytes, or fails with these words."""

    async def said(_question: bytes, context: grpc.aio.ServicerContext) -> bytes:
        if details:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, details)
        return answer

    handlers = {name: grpc.unary_unary_rpc_method_handler(said) for name in ("GetInventory", "GetUsage")}
    handler = grpc.method_handlers_generic_handler("sluice.v1.AgentService", handlers)
    async with transport.serve(lambda server: server.add_generic_rpc_handlers((handler,))) as endpoint:
        yield endpoint


async def why_not_pulled(answer: bytes, details: str = "") -> str:
    """What comes of a pull of an agent that answers so."""
    puller = Puller(SystemClock(), timeout_s=2.0)
    try:
        async with agent(answer, details) as endpoint:
            found = await puller.pull(Pull(NODE, endpoint))
    finally:
        await puller.close()
    assert isinstance(found, PullFailed)
    return found.message


def of(found: NodeSnapshot) -> bytes:
    return snapshot_to_proto(found).SerializeToString()


async def test_an_answer_that_is_no_message_is_a_failed_pull():
    """The inventory would end, and end again after each start: no node would get anything."""
    assert (await why_not_pulled(NOT_OURS)).endswith("its answer is not a message of Sluice")


async def test_who_asks_agents_for_a_person_is_told_of_an_answer_that_is_no_message(monkeypatch):
    """`sluice usage` and `sluice demo` would end with a traceback, for one node of many."""
    monkeypatch.setattr(agent_snapshots, "trusted", lambda: LOOPBACK)
    async with agent(NOT_OURS) as endpoint:
        addresses = {NODE: AgentAddress(endpoint)}
        assert await ask_agents(addresses, LOOPBACK) == {NODE: "INTERNAL: its answer is not a message of Sluice"}
        with pytest.raises(BusError, match="its answer is not a message of Sluice"):
            await agent_snapshots.snapshots(addresses)


def _unknown_state() -> bytes:
    answer = snapshot_to_proto(snapshot())
    answer.slices.add(booking=node_pb2.Booking(allocation=LONG), state=99)
    return answer.SerializeToString()


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(of(snapshot(node=NodeName(LONG))), id="node"),
        pytest.param(of(snapshot(agent_run=RunId(LONG))), id="run"),
        pytest.param(of(snapshot(boot_id=LONG)), id="boot"),
        pytest.param(of(snapshot(gpus=(gpu_report(uuid=GpuUuid(LONG)),))), id="uuid"),
        pytest.param(of(snapshot(gpus=(gpu_report(model=LONG),))), id="model"),
        pytest.param(of(snapshot(gpus=(gpu_report(creatable={LONG: 1}),))), id="profile"),
        pytest.param(_unknown_state(), id="allocation"),
    ],
)
async def test_a_long_name_is_told_in_some_hundred_characters(answer):
    """The word that its node is stale would be too large for the bus, and the inventory would end every 30 s."""
    assert len(await why_not_pulled(answer)) <= WORDS_MAX


async def test_a_long_refusal_is_told_in_some_hundred_characters():
    """As above: what an agent says of its refusal is its own text, too."""
    assert len(await why_not_pulled(b"", details="y" * 4000)) <= WORDS_MAX


@pytest.mark.parametrize("begin", ["", "127.0.0.1:1/", "gpu-1.example:", "unix:/"])
async def test_a_long_endpoint_is_told_in_some_hundred_characters(begin):
    """As above: agents say themselves where they are."""
    puller = Puller(SystemClock(), timeout_s=2.0)
    try:
        found = await puller.pull(Pull(NODE, begin + LONG))
    finally:
        await puller.close()
    assert isinstance(found, PullFailed)
    assert len(found.message) <= WORDS_MAX


@pytest.mark.parametrize("count", [2**31 - 1, 1025, -1])
async def test_an_absurd_count_is_a_failed_pull(count):
    """It would be added to the counts of all nodes, and everybody be told nonsense of the whole fleet."""
    found = await why_not_pulled(of(snapshot(gpus=(gpu_report(creatable={"1g.5gb": count}),))))
    assert found.endswith(f"GPU-1 says that {count} instances of 1g.5gb fit on it")
