"""A node's agent that floods the bus with its own user: the ledger goes on, and so do other nodes and the history."""

from collections.abc import AsyncIterator
from pathlib import Path

import nats
import pytest
from factories.broker.bus_rigs import NODE, OTHER_NODE, order, place, say, watching
from factories.broker.guarded_broker import Guarded, guarded_broker
from msgspec.structs import replace

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Stream, WriteAccepted
from sluice.contracts.bus.store_sizes import MIB
from sluice.contracts.bus.streams import SLICES_PER_NODE_MAX, Role
from sluice.contracts.ids import AllocationId
from sluice.runtime.nats.history_writer import BUDGET_BYTES, BUDGET_BYTES_PER_S, Budget
from sluice.runtime.nats.jetstream_bus import NatsBus

HISTORY_BYTES = 16 * MIB
"""STATE has 8 MiB then."""


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Guarded]:
    async with guarded_broker(tmp_path, NODE, OTHER_NODE) as found:
        await (await found.bus(Role.ADMINISTRATOR)).ensure_streams(history_bytes=HISTORY_BYTES)
        yield found


async def allocating(rig: Guarded) -> NatsBus:
    """An allocator, which copies for the history what agents say."""
    return await rig.bus(Role.ALLOCATOR, records_agents=True)


async def flood(rig: Guarded, prefix: str, count: int, size: int) -> None:
    """What an agent's own user can do in a burst, unguarded, as no agent of ours."""
    who = rig.credentials(Role.NODE_AGENT, NODE)
    connection = await nats.connect(rig.broker.url, user=who.user, password=who.password)
    for number in range(count):
        await connection.publish(f"{prefix}.x{number}", b"x" * size)
        if number % 100 == 0:
            await connection.flush()
    await connection.drain()


@pytest.mark.parametrize(("count", "size"), [(SLICES_PER_NODE_MAX + 4_000, 4_000), (8_000, 10)], ids=["bytes", "many"])
async def test_a_flood_of_statuses_stops_neither_the_ledger_nor_other_nodes(rig: Guarded, count: int, size: int):
    """After 1,118 messages of 60 kB no writer could store anything, and nothing was granted in the whole fleet."""
    allocator, other = await allocating(rig), await rig.bus(Role.NODE_AGENT, OTHER_NODE)
    kept = subjects.slice_(OTHER_NODE, AllocationId("kept"))
    await say(other, kept, 0)
    await flood(rig, f"sluice.slice.{subjects.node_token(NODE)}", count, size)
    await say(allocator, place("a"), 0)
    await allocator.bound_agents()
    assert isinstance(await other.write(order(subjects.slice_(OTHER_NODE, AllocationId("new")), 0), {}), WriteAccepted)
    assert await other.last(Stream.STATE, kept.subject) is not None
    async with watching(allocator.read(Stream.STATE)) as view:
        await view.until(lambda view: view.caught_up == 1)
        assert not any(f".{subjects.node_token(NODE)}." in subject for subject in view.known)


async def test_a_node_with_many_slices_keeps_its_statuses(rig: Guarded):
    """The limit would be met by a busy node of 16 shared GPUs."""
    allocator = await allocating(rig)
    await flood(rig, f"sluice.slice.{subjects.node_token(NODE)}", SLICES_PER_NODE_MAX, 4_000)
    await allocator.bound_agents()
    assert await allocator.last(Stream.STATE, f"sluice.slice.{subjects.node_token(NODE)}.x0") is not None


async def test_an_agent_writes_no_history_and_allocators_copy_what_it_says(rig: Guarded):
    """One agent could push a week of all history out in a minute; or its slices would have no history."""
    console = await rig.bus(Role.CONSOLE)
    await flood(rig, f"hist.sluice.slice.{subjects.node_token(NODE)}", 10, 10)
    first, second = await allocating(rig), await allocating(rig)
    agent, word = await rig.bus(Role.NODE_AGENT, NODE), subjects.slice_(NODE, AllocationId("a"))
    async with watching(first.read(Stream.STATE)) as one, watching(second.read(Stream.STATE)) as two:
        for view in (one, two):
            await view.until(lambda view: view.caught_up == 1)
        await say(agent, word, 0)
        for view in (one, two):
            await view.until(lambda view: word.subject in view.known)
        first.read_again(Stream.STATE)
        await one.until(lambda view: view.caught_up == 2)
    async with watching(console.read(Stream.HISTORY)) as view:
        await view.until(lambda view: view.caught_up == 1 and view.observed)
        assert [entry.subject for entry in view.observed] == [f"hist.{word.subject}"]


def test_a_node_that_reports_without_end_has_a_budget_in_the_history():
    """Its snapshots, 0.8 MB each, would fill 4 GiB in a day."""
    now = [0.0]
    budget = Budget(lambda: now[0])
    assert [budget.takes("a", BUDGET_BYTES // 2) for _ in range(3)] == [True, True, False]
    assert budget.takes("b", BUDGET_BYTES)
    now[0] = 10.0
    assert budget.takes("a", 10 * BUDGET_BYTES_PER_S)
    assert not budget.takes("a", 1)


@pytest.mark.parametrize("token", ["*", ">"])
async def test_a_wildcard_stored_as_a_name_is_no_message(rig: Guarded, token: str):
    """Brokers store it literally; a reader that took it for a name would have a slice that no filter can mean."""
    allocator = await allocating(rig)
    agent = await rig.bus(Role.NODE_AGENT, NODE)
    good = order(subjects.slice_(NODE, AllocationId("a")), 0)
    stored = f"sluice.slice.{subjects.node_token(NODE)}.{token}"
    assert isinstance(await agent.write(replace(good, subject=stored, guard=stored), {}), WriteAccepted)
    async with watching(allocator.read(Stream.STATE)) as view:
        await view.until(lambda view: view.caught_up == 1)
        assert view.known == {}
