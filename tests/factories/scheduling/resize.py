"""Shares that are resized: requested, ordered and carried out, on one node that can share."""

from factories.scheduling.allocator import Bench, claim, ready_of, snapshot
from msgspec.structs import replace

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Write
from sluice.contracts.ids import NodeName, RequestId
from sluice.contracts.messages import Amounts, Grant, QuotaSet
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
    found = [each.outcome for each in bench.said if isinstance(each, AnswerAdjust)]
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


def answer_of(grant: Grant, *, shrinking: bool = False):
    """Its agent's report when the slice is as ordered, or still counts at the old size."""
    return replace(ready_of(grant), shrinking=shrinking)


def said(bench: Bench, grant: Grant, *, shrinking: bool = False) -> list[Write]:
    """The agent has carried it out, or has begun."""
    booking = grant.booking
    word = answer_of(grant, shrinking=shrinking)
    return bench.settle(bench.observe(subjects.slice_(booking.node, booking.allocation), word))


def free_mib(bench: Bench) -> int:
    """What is left of the only home."""
    (home,) = bench.allocator.ctx.cluster.gpus["GPU-node-a-0"].homes.values()
    return home.home.free_memory_mib


def names(writes: list[Write]) -> list[str]:
    return [write.message.booking.name for write in writes if isinstance(write.message, Grant)]


def shares_of(grant: Grant) -> list[int]:
    """The memory of each of its shares, in MiB."""
    return [device.share.memory_mib for device in grant.booking.devices if device.share is not None]


def limit(bench: Bench, *, pod: Amounts | None = None, **total: int) -> list:
    """An operator sets the quota of the namespace; returns what follows at once."""
    quota = QuotaSet(namespace="default", total=Amounts(**total), request=pod or Amounts())
    return bench.observe(subjects.quota("default"), quota)
