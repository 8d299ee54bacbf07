"""Shares that are resized: requested, ordered and carried out, on one node that can share."""

from factories.scheduling.allocator import Bench, claim, only, snapshot

from sluice.contracts.bus.events import Write
from sluice.contracts.ids import NodeName, RequestId
from sluice.contracts.messages import Grant
from sluice_allocator.core.events import AdjustAsked, AnswerAdjust
from sluice_allocator.core.resize.pending import Adjusted, AdjustRefused, Change
from sluice_allocator.core.resize.resize import adjust

NODE = NodeName("node-a")
MODES = ("exclusive", "mps", "fractional")
GPU_MIB = 40960


def with_gpus(empty: Bench, *gpus, **changes) -> Bench:
    """The same allocator with node-a open, which has these GPUs and can share them."""
    empty.add_node(snapshot("node-a", gpus, modes=MODES, **changes))
    empty.said.clear()
    return empty


def mps(memory_mib: int = 4000, **changes):
    return claim(profile=None, modes=("mps",), memory_mib=memory_mib, uid=1000, **changes)


def fractional(sm_partition: int = 20, memory_mib: int = 4000, **changes):
    return claim(
        profile=None, modes=("fractional",), sm_partition=sm_partition, memory_mib=memory_mib, uid=1000, **changes
    )


def change(request: str = "p1", container: str = "", **values: int) -> Change:
    return Change(RequestId(request), container, values)


def answers(bench: Bench) -> list:
    """What was answered since this was looked at last."""
    found = [each.outcome for each in only(AnswerAdjust, bench.said)]
    bench.said.clear()
    return found


def adjusted(bench: Bench, request: str = "p1", container: str = "", **values: int) -> Grant:
    """Change shares; the order for the agent, in the ledger."""
    bench.said.clear()
    (write,) = bench.settle(bench.handle(AdjustAsked(1, change(request, container, **values))))
    assert isinstance(write.message, Grant), write
    (answer,) = answers(bench)
    assert isinstance(answer, Adjusted)
    return write.message


def refused(bench: Bench, request: str = "p1", container: str = "", **values: int) -> AdjustRefused:
    """Request an impossible change: nothing is written, and a dry run shows the same."""
    bench.said.clear()
    asks = change(request, container, **values)
    expected = adjust(bench.allocator.ctx, asks)
    assert bench.handle(AdjustAsked(7, asks)) == [AnswerAdjust(7, expected)]
    assert isinstance(expected, AdjustRefused)
    return expected


def said(bench: Bench, grant: Grant, *, shrinking: bool = False) -> list[Write]:
    """The agent has carried it out, or has begun: the slice still counts at the old size."""
    return bench.settle(bench.ready(grant, shrinking=shrinking))


def free_mib(bench: Bench) -> int:
    """What is left of the only home."""
    (home,) = bench.allocator.ctx.cluster.gpus["GPU-node-a-0"].homes.values()
    return home.home.free_memory_mib


def shares_of(grant: Grant) -> list[int]:
    """The memory of each of its shares, in MiB."""
    return [device.share.memory_mib for device in grant.booking.devices if device.share is not None]
