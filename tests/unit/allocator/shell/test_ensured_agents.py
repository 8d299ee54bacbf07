"""The allocator makes the consumers by which agents read their orders."""

import pytest
from factories.broker.memory_bus import MemoryBroker, MemoryBus

from sluice.contracts.bus.events import Stream
from sluice.contracts.ids import NodeName
from sluice.runtime.bus import BusError
from sluice_allocator.core.events import AgentEnsured, EnsureAgent
from sluice_allocator.shell.app import _ensurer


async def test_one_node_whose_consumer_is_refused_does_not_end_the_allocator(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would end again after each restart, and no node of the fleet would be served."""
    bus = MemoryBroker().bus("allocator")
    made = MemoryBus.ensure_agent

    async def ensure(self: MemoryBus, node: NodeName) -> None:
        if node == "gpu-2":
            raise BusError("the durable agent_gpu-2 exists with other settings")
        await made(self, node)

    monkeypatch.setattr(MemoryBus, "ensure_agent", ensure)
    await bus.ensure_streams()
    assert await bus.incarnation(Stream.BOOK)
    found = [await _ensurer(bus)(EnsureAgent(NodeName(name))) for name in ("gpu-1", "gpu-2", "gpu-3")]
    assert found == [AgentEnsured(NodeName(name), made=name != "gpu-2") for name in ("gpu-1", "gpu-2", "gpu-3")]
    said = capsys.readouterr()
    assert "gpu-2 exists with other settings" in said.out + said.err
