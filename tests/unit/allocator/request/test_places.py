"""Where a claim goes: profiles, GPUs, nodes."""

import pytest
from factories.scheduling.allocator import asked, claim, gpu_report, snapshot
from msgspec.structs import replace

from sluice.contracts.bus import subjects
from sluice.contracts.ids import GpuUuid
from sluice.contracts.messages import Cordoned, Grant, Pending, Uncordoned
from sluice.contracts.reasons import WaitReason
from sluice.mig.catalog import find_model
from sluice_allocator.core.placement import PlacementConfig
from sluice_allocator.core.placement.nodes.device_spec import WHOLE, shape_for

A100 = find_model("a100-40gb")
H100 = find_model("h100-sxm-80gb")


def places(writes) -> list:
    return [
        (d.gpu, d.profile, d.start)
        for w in writes
        if isinstance(w.message, Grant) and not w.message.adopted
        for d in w.message.booking.devices
    ]


@pytest.mark.parametrize(
    ("model", "ask", "profile"),
    [
        (A100, {"memory_mib": 4864}, "1g.5gb"),
        (A100, {"memory_mib": 4865}, "1g.10gb"),
        (A100, {"memory_mib": 8000}, "1g.10gb"),
        (A100, {"memory_mib": 20000}, "3g.20gb"),
        (A100, {"sm_count": 15}, "2g.10gb"),
        (A100, {"sm_percentage": 50}, "4g.20gb"),
        (A100, {"sm_percentage": 1}, "1g.5gb"),
        (A100, {"sm_percentage": 100}, "7g.40gb"),
        (A100, {}, "7g.40gb"),
        (H100, {"sm_count": 20}, "1g.20gb"),
        (H100, {"sm_percentage": 20, "memory_mib": 30000}, "3g.40gb"),
    ],
)
def test_a_claim_never_gets_less_than_it_asks_for(model, ask, profile):
    """Sizes round up to the smallest profile that is enough by compute slices, then memory."""
    shape = shape_for(model, claim(**({"profile": None} | ask)), PlacementConfig(), mig=True)
    assert shape.name == profile


def _gb10(node):
    return replace(
        gpu_report(node, 0, mig=False),
        model="NVIDIA GB10",
        memory_mib=0,
        multiprocessors=48,
        memory_slices=1,
        compute_slices=1,
        profiles=(),
    )


@pytest.mark.parametrize(
    "ask",
    [
        {"memory_mib": 8000},
        {"memory_percentage": 50},
        {"memory_mib": 8000, "modes": ("mps",), "uid": 0},
        {"sm_partition": 20, "modes": ("fractional",), "uid": 0},
        {"shares_percent": 50, "modes": ("fractional",), "uid": 0},
    ],
    ids=["memory", "part of the memory", "share by memory", "share by SMs", "part of a GPU"],
)
def test_who_asks_for_a_part_of_a_gpu_whose_memory_is_not_known_is_told_so(empty, ask):
    """A share of an unknown memory would be one without a limit, or one of nothing."""
    empty.add_node(snapshot("node-a", (_gb10("node-a"),), modes=("exclusive", "mps", "fractional")))
    writes = empty.land_all(empty.request(asked("p1", claim(**({"profile": None} | ask)))))
    assert places(writes) == []
    (waits,) = [write.message for write in writes if isinstance(write.message, Pending)]
    assert WaitReason.GPU_MEMORY_UNKNOWN in {reason.reason for reason in waits.reasons}
    assert "does not report the memory of GB10" in waits.message


def test_a_cordoned_gpu_gets_no_new_slice_and_its_neighbour_does(empty):
    """Cordoned by UUID: pods go beside it, wait when nothing is left, and come back when it is uncordoned."""
    seen = snapshot("node-a", (gpu_report("node-a", 0), gpu_report("node-a", 1)))
    empty.add_node(seen)
    empty.observe(subjects.cordon(seen.node), Cordoned(node=seen.node, gpus=(GpuUuid("GPU-node-a-0"),), why="noisy"))
    whole = claim(profile="7g.40gb")

    assert places(empty.land_all(empty.request(asked("p1", whole)))) == [("GPU-node-a-1", "7g.40gb", 0)]
    (pending,) = empty.land_all(empty.request(asked("p2", whole)))
    assert {r.reason for r in pending.message.reasons} == {WaitReason.NODE_CORDONED, WaitReason.GPU_LAYOUT_FULL}
    served = empty.land_all(empty.observe(subjects.cordon(seen.node), Uncordoned(node=seen.node)))
    assert places(served) == [("GPU-node-a-0", "7g.40gb", 0)]


def test_a_gpu_without_mig_is_only_given_whole():
    """A whole-GPU ask gets it; a sized ask does not waste it."""
    whole, sized = claim(profile=None), claim(profile=None, memory_mib=8000)
    assert shape_for(A100, whole, PlacementConfig(), mig=False) is WHOLE
    assert shape_for(A100, sized, PlacementConfig(), mig=False) is WaitReason.GPU_MODE_NOT_FIT
