"""Two allocators that know of the same promises say the same of who waits, in whichever order they heard of them."""

from factories.scheduling.allocator import Bench

from sluice.contracts.ids import AllocationId, RunId
from sluice.contracts.reasons import ReasonCount, WaitReason
from sluice_allocator.core.allocator import Allocator
from sluice_allocator.core.config import SchedulerConfig
from sluice_allocator.core.placement import NoPlace
from sluice_allocator.core.reservations.reservation import with_promises


def test_the_promises_of_several_models_are_named_in_the_same_order_by_all():
    """Else each writes its own order over the other's, every few seconds and for each that waits, without end."""
    said = []
    for models in (("A", "B"), ("B", "A")):
        bench = Bench(Allocator(RunId("r1"), SchedulerConfig()))
        for model in models:
            bench.allocator.ctx.promised.count(AllocationId(f"x_{model}_1"), (model,))
        reasons = tuple(ReasonCount(reason=WaitReason.GPU_LAYOUT_FULL, count=1, of=model) for model in ("A", "B"))
        said.append(with_promises(bench.allocator.ctx, NoPlace("full", reasons)))

    assert said[0] == said[1]
