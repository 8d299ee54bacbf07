"""The judge of layouts must be able to judge: each fault it knows is shown to it once, a legal GPU is not blamed."""

from pathlib import Path
from typing import Any

import pytest
from judges.layouts import Layouts

CATALOG = Path(__file__).resolve().parents[3] / "libs" / "sluice" / "mig" / "catalog.toml"


def judge(**rules: Any) -> Layouts:
    """One A100-40GB with MIG, one without, one plain T4."""
    layouts = Layouts.of_catalog(CATALOG, **rules)
    layouts.has_model("MIG", "a100-40gb", mig=True)
    layouts.has_model("GPU", "a100-40gb", mig=False)
    layouts.has_plain("T4", memory_mib=16000, sms=40)
    return layouts


def slice_(profile: str, start: int, size: int, **share: Any) -> dict:
    return {"gpu": "MIG", "profile": profile, "start": start, "size": size, "share": share or None}


def whole(gpu: str = "GPU", size: int = 8, **share: Any) -> dict:
    return {"gpu": gpu, "profile": None, "start": 0, "size": size, "share": share or None}


def part(memory_mib: int = 1000, sm_partition: int = 10, mode: str = "fractional", uid: int = 0) -> dict:
    return {"mode": mode, "uid": uid, "memory_mib": memory_mib, "sm_partition": sm_partition}


def test_a_full_legal_gpu_is_not_blamed():
    """A judge that blames the innocent is switched off by those who meet it."""
    layouts = judge()
    said = [
        *layouts.grant("a", "n", [slice_("3g.20gb", 4, 4)]),
        *layouts.grant("b", "n", [slice_("2g.10gb", 0, 2), slice_("1g.5gb", 3, 1)]),
        *layouts.grant("c", "n", [slice_("1g.5gb", 2, 1)]),
        *layouts.grant("d", "n", [whole(**part(sm_partition=60)), whole("T4", 1)]),
        *layouts.grant("e", "n", [whole(**part(sm_partition=40))]),
    ]
    assert said == []


def test_a_released_place_may_be_given_again():
    layouts = judge()
    layouts.grant("a", "n", [whole()])
    layouts.release("a")
    assert layouts.grant("b", "m", [whole()]) == []


@pytest.mark.parametrize(
    ("first", "second", "fault"),
    [
        (slice_("3g.20gb", 4, 4), slice_("2g.10gb", 4, 2), "slice 4"),
        (slice_("1g.5gb", 0, 1), slice_("7g.40gb", 0, 8), "compute slices"),
        (slice_("1g.5gb+me", 0, 1), slice_("1g.5gb+me", 1, 1), "engines of kind 3"),
        (slice_("1g.5gb+me", 0, 1), slice_("1g.5gb+me", 1, 1), "instances of 1g.5gb+me"),
        (slice_("1g.5gb", 0, 1), slice_("2g.10gb", 1, 2), "cannot be at 1"),
        (slice_("1g.5gb", 0, 1), slice_("2g.10gb", 2, 1), "with 1 slices"),
        (slice_("1g.5gb", 0, 1), slice_("1g.7gb", 1, 1), "no profile"),
        (slice_("1g.5gb", 0, 1), slice_("1g.5gb", 0, 1), "at once"),
        (whole(), whole(), "at once"),
        (whole(), whole(**part()), "one tenant's own"),
        (whole("T4", 1), whole("T4", 8), "given whole only"),
        (whole(**part(uid=1)), whole(**part(uid=2)), "trust domains"),
        (whole(**part()), whole(**part(mode="mps")), "several modes"),
        (whole(**part(sm_partition=60)), whole(**part(sm_partition=41)), "101 of 100 percent"),
        (whole(**part(20000)), whole(**part(20961)), "of 40960 MiB"),
        (whole("T4", 1), whole(**part(41000, mode="mps")), "larger than its 40960 MiB"),
        (slice_("1g.5gb", 0, 1, **part()), slice_("1g.5gb", 0, 1, **part(sm_partition=5)), "15 of 14 SMs"),
    ],
)
def test_every_fault_is_seen(first: dict, second: dict, fault: str):
    layouts = judge()
    layouts.grant("a", "n", [first])
    assert any(fault in problem for problem in layouts.grant("b", "n", [second]))


def test_another_namespace_is_another_trust_domain():
    """Tenants of two namespaces behind one MPS server could end each other."""
    layouts = judge()
    layouts.grant("a", "n", [whole(**part())])
    assert any("trust domains" in problem for problem in layouts.grant("b", "m", [whole(**part())]))


def test_overcommit_is_for_mps_only():
    """Fractional shares are promises; a factor does not stretch them."""
    for mode, faults in (("mps", 0), ("fractional", 1)):
        layouts = judge(overcommit_percent=150)
        layouts.grant("a", "n", [whole(**part(30000, mode=mode))])
        assert len(layouts.grant("b", "n", [whole(**part(30000, mode=mode))])) == faults


def test_too_many_clients_are_seen():
    """The seventh client of a 1g instance would be turned away by the MPS server."""
    layouts = judge()
    said = [layouts.grant(str(n), "n", [slice_("1g.5gb", 0, 1, **part(1, 1, "mps"))]) for n in range(7)]
    assert [len(problems) for problems in said] == [0] * 6 + [1]


def test_turns_are_judged_by_width_times_time():
    """With turns, two shares of the whole width fit when each has half the time."""
    layouts = judge(taking_turns=True)
    half = part(sm_partition=100) | {"quota_request_permille": 500}
    assert layouts.grant("a", "n", [whole(**half)]) == layouts.grant("b", "n", [whole(**half)]) == []
    assert layouts.grant("c", "n", [whole(**half)]) != []


def test_unknown_gpus_and_second_grants_are_seen():
    layouts = judge()
    assert layouts.grant("a", "n", [whole("NONE")]) == ["a is granted NONE, which does not exist"]
    layouts.grant("b", "n", [whole()])
    assert layouts.grant("b", "n", [whole()]) == ["b is granted a second time"]
