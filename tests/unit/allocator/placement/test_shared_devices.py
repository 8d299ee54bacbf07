"""Homes of shares: what fits beside what, and what is left."""

from collections import Counter
from dataclasses import replace

import msgspec
import pytest
from factories.scheduling.placement import Shop, claim, node
from factories.scheduling.placement import share as share_of
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.contracts.ids import AllocationId, RequestId
from sluice.contracts.messages import Claim, Share
from sluice.contracts.reasons import WaitReason
from sluice.mig.share_width import width_percent
from sluice_allocator.core.placement import NoPlace
from sluice_allocator.core.placement.nodes.shared_device import DeviceKey, SharedDevice, SharedDeviceSize, ShareMode

GPU = SharedDeviceSize(memory_mib=40960, sms=108, gpu_sms=108, tenants_max=48, taking_turns=False)
INSTANCE = SharedDeviceSize(memory_mib=9984, sms=28, gpu_sms=98, tenants_max=13, taking_turns=False)
"""A 2g.10gb of an A100-40GB, of whose 108 SMs MIG gives 98."""


def _key(number: int) -> DeviceKey:
    return AllocationId(f"a{number}"), 0


def _fractional(sm_partition: int, memory_mib: int = 1000, quota_permille: int = 1000) -> Share:
    of_gpu = {"memory_mib": memory_mib, "sm_partition": sm_partition, "quota_request_permille": quota_permille}
    return Share(mode="fractional", uid=0, **of_gpu)


def _mps(memory_mib: int) -> Share:
    return Share(mode="mps", uid=0, memory_mib=memory_mib)


def _mps_claim(memory_mib: int) -> Claim:
    return claim(modes=("mps",), memory_mib=memory_mib)


def _home(size: SharedDeviceSize, *shares: Share, mode: ShareMode = "fractional") -> SharedDevice:
    home = SharedDevice(size, mode, ("default", 0))
    for number, share in enumerate(shares):
        home.add(_key(number), share)
    return home


_TURNS = replace(GPU, taking_turns=True)
_HALF_TIME = _fractional(80, quota_permille=500)
_BURST = Share(mode="fractional", uid=0, memory_mib=1, sm_partition=100, quota_request_permille=500)
_CALM = msgspec.structs.replace(_BURST, quota_limit_permille=500)


@pytest.mark.parametrize(
    ("size", "booked", "more", "short"),
    [
        # Two tenants would be promised the same memory, and one would die of it.
        (GPU, [_mps(30000)], _mps(10960), None),
        (GPU, [_mps(30000)], _mps(10961), WaitReason.GPU_INSUFFICIENT_MEMORY),
        # Over-subscription would admit a share that could never be used whole.
        (replace(GPU, overcommit_percent=200), [], _mps(40961), WaitReason.GPU_INSUFFICIENT_MEMORY),
        # The sum of guaranteed SM partitions would pass 100 %.
        (GPU, [_fractional(50), _fractional(30, quota_permille=100)], _fractional(20), None),
        (
            GPU,
            [_fractional(50), _fractional(30, quota_permille=100)],
            _fractional(21, quota_permille=1),
            WaitReason.GPU_INSUFFICIENT_SMS,
        ),
        # MPS shares, which are promised memory only, would be refused for SMs that are not reserved.
        (GPU, [_mps(1000)] * 12, _mps(1000), None),
        # Tenants would take turns on paper where no scheduler makes them.
        (GPU, [_HALF_TIME], _HALF_TIME, WaitReason.GPU_INSUFFICIENT_SMS),
        (_TURNS, [_HALF_TIME], _HALF_TIME, None),
        (_TURNS, [_HALF_TIME] * 2, _HALF_TIME, WaitReason.GPU_TIME_USED_UP),
        # What a tenant may have when no other wants it would be taken from those that it is promised to.
        (_TURNS, [_BURST], _CALM, None),
        (_TURNS, [_CALM], _BURST, None),
        # The forty-ninth pod would start and fail to connect.
        (GPU, [_mps(10)] * 48, _mps(10), WaitReason.GPU_TENANTS_USED_UP),
        # Rounding to SMs on a whole GPU would make 10 shares of 10 % miss their place.
        (GPU, [_fractional(10)] * 9, _fractional(10), None),
        # A tenant that may use every SM would be put beside one that was promised some of them.
        (GPU, [_fractional(1)], _fractional(0), WaitReason.GPU_INSUFFICIENT_SMS),
    ],
)
def test_one_more_share_fits_or_what_is_short_is_named(size, booked, more, short) -> None:
    """A guarantee would be given twice, or a pod would wait beside room."""
    assert _home(size, *booked, mode=more.mode).why_not(more) is short


def test_more_memory_than_there_is_goes_to_mps_shares_only() -> None:
    """Either the operator's factor would do nothing, or it would break the guarantee of fractional shares."""
    size = replace(GPU, overcommit_percent=150)
    home = _home(size, _mps(40000), mode="mps")
    assert home.free_memory_mib == 61440 - 40000
    assert home.why_not(_mps(21440)) is None
    assert _home(size, _fractional(10, 40000)).why_not(_fractional(10, 961)) is WaitReason.GPU_INSUFFICIENT_MEMORY


_EXAMPLE = {
    "a": _fractional(50, 16000, 400),
    "b": _fractional(50, 8000, 600),
    "c": _fractional(30, 8000, 1000),
    "d": _fractional(40, 4000, 500),
    "e": _fractional(20, 4000, 500),
    "f": _fractional(20, 5000, 500),
    "g": _fractional(10, 4960, 500),
}
"""The pods of the example in docs/sharing.md."""


def test_the_example_of_the_documentation_with_quotas() -> None:
    """People who plan their quotas by the documentation would get other numbers from the allocator."""
    home, answers = _home(_TURNS), {}
    for name, share in _EXAMPLE.items():
        answers[name] = home.why_not(share)
        if answers[name] is None:
            home.add((AllocationId(name), 0), share)
    assert answers == {
        "a": None,
        "b": None,
        "c": None,
        "d": WaitReason.GPU_TIME_USED_UP,
        "e": None,
        "f": WaitReason.GPU_INSUFFICIENT_MEMORY,
        "g": None,
    }
    assert (home.free_memory_mib, home.free_width_percent) == (0, 0)
    home.remove((AllocationId("c"), 0))
    assert (home.free_memory_mib, home.free_width_percent) == (8000, 30)
    assert home.why_not(_EXAMPLE["d"]) is WaitReason.GPU_TIME_USED_UP
    home.remove((AllocationId("b"), 0))
    assert home.why_not(_EXAMPLE["d"]) is None
    home.add((AllocationId("d"), 0), _EXAMPLE["d"])
    assert home.free_width_percent == 30


@pytest.mark.parametrize(
    ("partition", "width"), [(0, 100), (1, 4), (10, 36), (12, 43), (28, 100), (29, 104), (100, 350)]
)
def test_a_share_on_an_instance_is_rounded_up_to_whole_sms(partition: int, width: int) -> None:
    """A tenant would get a fraction of an SM less than it asked for: 10 % of 98 SMs are 10 of the instance's 28."""
    assert width_percent(partition, INSTANCE.sms, INSTANCE.gpu_sms) == width


_ANY_SHARES = st.lists(
    st.tuples(st.integers(0, 100), st.integers(1, 30000), st.integers(0, 1000)), min_size=1, max_size=12
)
_FACTORS = st.sampled_from([100, 170])
_SIZES = st.builds(replace, st.sampled_from([GPU, INSTANCE]), taking_turns=st.booleans(), overcommit_percent=_FACTORS)


@settings(max_examples=200, deadline=None)
@given(_ANY_SHARES, st.sampled_from(["mps", "fractional"]), _SIZES)
def test_a_search_by_level_never_misses_a_home_with_room(asked, mode: ShareMode, size: SharedDeviceSize) -> None:
    home = SharedDevice(size, mode, ("default", 0))
    for number, amounts in enumerate(asked):
        share = msgspec.structs.replace(_fractional(*amounts), mode=mode)
        assert 0 <= home.level <= 100
        if home.why_not(share) is None:
            assert 1 <= size.level_needed(share) <= home.level
            home.add(_key(number), share)
            assert home.free_memory_mib >= 0
            assert home.free_width_percent >= 0
    for number in range(len(asked)):
        home.remove(_key(number))
    assert not home.shares
    assert (home.level, home.free_width_percent) == (100, 100)
    assert home.free_memory_mib == SharedDevice(size, mode, ("default", 0)).free_memory_mib


def _theirs(shop: Shop, ours: AllocationId, **changes: object) -> None:
    """Another allocator's booking is read, like ours but for these changes."""
    changes |= {"allocation": AllocationId("b1"), "request": RequestId("b1")}
    shop.cluster.book(msgspec.structs.replace(shop.booked[ours], **changes))


def test_a_home_that_two_allocators_filled_at_once_takes_no_tenant_until_it_is_clear_whose_it_is() -> None:
    """Two trust domains would share one MPS server: ours is booked, theirs is read, ours is refused and taken back."""
    shop = Shop(node("n1", 1, mig=False))
    ask = claim(modes=("mps",), memory_mib=1000, uid=1)
    ours = shop.take(ask, namespace="den")
    _theirs(shop, ours, namespace="lab")
    assert isinstance(shop.ask(ask, namespace="den"), NoPlace)
    assert isinstance(shop.ask(ask, namespace="lab"), NoPlace)
    shop.give_back(ours)
    assert isinstance(shop.ask(ask, namespace="den"), NoPlace)
    assert not isinstance(shop.ask(ask, namespace="lab"), NoPlace)
    shop.cluster.unbook(AllocationId("b1"))
    assert not isinstance(shop.ask(ask, namespace="den"), NoPlace)


def test_no_tenant_joins_a_home_that_overlaps_what_another_allocator_booked() -> None:
    """Its place would be given twice: the home is only there because of a share that is about to be refused."""
    shop = Shop(node("n1", 1))
    ask = claim(modes=("mps",), memory_mib=4000, uid=1)
    ours = shop.take(ask, namespace="den")
    (device,) = shop.devices(ours)
    _theirs(shop, ours, devices=(msgspec.structs.replace(device, profile="1g.5gb", size=1, share=None),))
    more = shop.take(ask, namespace="den")
    assert more is None or shop.devices(more)[0].start != device.start
    shop.cluster.unbook(AllocationId("b1"))
    assert not isinstance(shop.ask(ask, namespace="den"), NoPlace)


@pytest.mark.parametrize(
    ("mig", "taken", "asked", "rest"),
    [
        (False, [share_of(30)], share_of(30), claim()),
        (True, [_mps_claim(4000), _mps_claim(15000)], _mps_claim(500), claim(profile="7g.40gb")),
    ],
    ids=["a GPU", "instances of two profiles"],
)
def test_a_home_that_has_room_is_not_said_to_be_of_other_users(mig, taken, asked, rest):
    """A user would look for a tenant that does not exist: what is missing is the whole GPU."""
    shop = Shop(node("n1", 1, mig=mig))
    assert all(shop.take(each) for each in taken)
    others = WaitReason.GPU_OTHER_TRUST_DOMAIN
    assert _counts(shop.ask(asked, rest))[others] == 0
    assert _counts(shop.ask(asked, rest, namespace="lab"))[others] == len(taken)


def test_homes_of_other_users_are_said_beside_own_ones_of_another_profile():
    """Who waits would not learn that a tenant holds the other instance."""
    shop = Shop(node("n1", 1))
    assert shop.take(_mps_claim(4000))
    assert shop.take(_mps_claim(15000), namespace="lab")
    assert {device.profile for device in shop.all_devices()} == {"1g.10gb", "3g.20gb"}
    assert _counts(shop.ask(_mps_claim(500), claim(profile="7g.40gb")))[WaitReason.GPU_OTHER_TRUST_DOMAIN] == 1


def _counts(why):
    assert isinstance(why, NoPlace)
    return Counter({each.reason: each.count for each in why.reasons})
