"""What a request and an evicted pod wait for in time: every end of a pause is looked at, one after another."""

from sluice.contracts.ids import GpuUuid, RequestId
from sluice_allocator.core.config import SchedulerConfig
from sluice_allocator.core.preemption.eviction_backoff import EvictionBackoff
from sluice_allocator.core.queue.backoff import RequestBackoff

RULES = SchedulerConfig(
    retry_first_s=1.0, retry_max_s=60.0, spare_first_s=500.0, eviction_patience_s=120.0, eviction_gone_s=1200.0
)
POD, FIRST, SECOND = RequestId("pod"), GpuUuid("GPU-1"), GpuUuid("GPU-2")


def test_a_request_that_failed_on_two_gpus_tries_each_when_its_own_pause_is_over():
    backoff = RequestBackoff(RULES)
    backoff.failed(POD, [FIRST], 10.0)
    backoff.failed(POD, [SECOND], 10.5)

    assert backoff.pauses_ended(10.9) == []
    assert backoff.pauses_ended(11.0) == [POD]
    assert backoff.avoided(POD, 11.0) == {SECOND}
    assert backoff.pauses_ended(12.4) == []
    assert backoff.pauses_ended(12.5) == [POD]
    assert not backoff.avoided(POD, 12.5)
    assert backoff.pauses_ended(1e9) == []


def test_an_eviction_is_looked_at_when_its_order_its_slice_and_its_exemption_are_late():
    """What waits for its place would wait on, and a pod that could not go once would be spared for ever."""
    evictions = EvictionBackoff(RULES)
    evictions.awaited(POD, 0.1)
    evictions.awaited(POD, 50.0)

    assert evictions.due(120.0) == []
    assert evictions.due(120.1) == [POD]
    assert evictions.is_overdue(POD, 120.1, done=False)
    assert not evictions.is_overdue(POD, 120.1, done=True)
    evictions.failed(POD, 130.0)
    assert evictions.due(629.0) == []
    assert evictions.is_spared(POD, 629.0)
    assert evictions.due(630.0) == [POD]
    assert not evictions.is_spared(POD, 630.0)
    assert evictions.due(1200.1) == [POD]
    assert evictions.is_overdue(POD, 1200.1, done=True)
    assert evictions.due(1e9) == []
