"""What booked devices count against a namespace's limits: one number to enforce and to display."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.contracts.ids import GpuUuid
from sluice.contracts.messages import DeviceGrant, Share
from sluice.contracts.quotas.usage import Usage, compute_slices_of, total, usage_of_device
from sluice.mig.catalog import catalog, find_model

A100 = find_model("a100-40gb")


def device(profile: str | None, share: Share | None = None) -> DeviceGrant:
    return DeviceGrant(container="main", gpu=GpuUuid("GPU-1"), profile=profile, start=0, size=1, share=share)


def mps(memory_mib: int) -> Share:
    return Share(mode="mps", uid=7, memory_mib=memory_mib)


def fractional(sm_partition: int, memory_mib: int = 1000) -> Share:
    return Share(mode="fractional", uid=7, memory_mib=memory_mib, sm_partition=sm_partition)


@pytest.mark.parametrize("model", [*catalog()], ids=lambda model: model.key)
def test_an_instance_counts_its_profile_and_a_whole_gpu_its_largest(model):
    for profile in model.profiles:
        counts = usage_of_device(device(profile.name), model)
        assert counts == Usage(1, profile.memory_mib, profile.compute_slices * 1000)
    whole = usage_of_device(device(None), model)
    assert whole == Usage(1, model.memory_mib, compute_slices_of(model) * 1000)
    assert whole.compute_permille >= max((p.compute_slices * 1000 for p in model.profiles), default=1000)


@given(percent=st.integers(1, 100))
def test_no_part_of_a_gpu_is_rounded_to_nothing(percent):
    """tensor-fusion B8: 0.3 % of 100 TFLOPS is a whole number there, which is 0: compute free of charge."""
    assert usage_of_device(device(None, fractional(percent)), A100).compute_permille == 70 * percent
    tiny = usage_of_device(device("1g.5gb", mps(1)), A100)
    assert tiny == Usage(1, 1, 1)


@given(parts=st.lists(st.integers(1, 40), max_size=6))
def test_parts_of_a_gpu_never_count_more_than_the_gpu_does(parts):
    """Namespaces with shares would reach their limit before those with whole GPUs."""
    fitting = []
    for part in parts:
        if sum(fitting) + part <= 100:
            fitting.append(part)
    memory_mib = A100.largest.memory_mib
    shares = [device("7g.40gb", fractional(part, memory_mib * part // 100)) for part in fitting]
    counts = total(usage_of_device(each, A100) for each in shares)
    whole = usage_of_device(device("7g.40gb"), A100)
    assert counts.compute_permille <= whole.compute_permille
    assert counts.memory_mib <= whole.memory_mib


def test_a_share_without_a_bound_counts_its_part_of_the_memory():
    """It may use all SMs when others leave them; counted so, eight shares would be eight GPUs."""
    half = usage_of_device(device("7g.40gb", mps(20160)), A100)
    assert half == Usage(1, 20160, 3500)
    assert usage_of_device(device(None, mps(20480)), A100) == Usage(1, 20480, 3500)


def test_on_a_gpu_that_is_not_known_any_more_the_name_of_the_profile_speaks():
    """Its tenants run on, and unplugging a cable would lift a limit."""
    assert usage_of_device(device("3g.20gb"), None) == Usage(1, 20480, 3000)
    assert usage_of_device(device("1g.5gb+me"), None) == Usage(1, 5120, 1000)
    assert usage_of_device(device("7g.999gb"), A100) == Usage(1, 999 * 1024, 7000)
    assert usage_of_device(device(None), None) == Usage(1)
    assert usage_of_device(device(None, mps(500)), None) == Usage(1, 500, 0)
    assert usage_of_device(device(None, fractional(10)), None) == Usage(1, 1000, 100)
