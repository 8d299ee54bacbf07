"""Questions to the allocator: what would become of a pod, and how a request stands. Asking leaves no trace."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from unittest.mock import Mock

import msgspec
import pytest
from factories.scheduling.allocator import FOLDER, Bench, all_said, asked, claim, gpu_report, only, snapshot
from factories.scheduling.resize import fractional, mps, with_gpus

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.ids import NodeName, RequestId
from sluice.contracts.manifests import ManifestLimits, read_manifests
from sluice.contracts.reasons import ReasonCount, Refusal, RefusalReason, WaitReason
from sluice.contracts.request_syntax import ContainerRequest, RequestLimits
from sluice.mig.transition_table import TransitionTable
from sluice_allocator.core.explain.status import (
    AsksNothing,
    PodAsked,
    QueuePosition,
    RequestState,
    Simulated,
    WouldBind,
    WouldWait,
    how_it_stands,
    simulate,
    simulate_together,
)
from sluice_allocator.core.placement.explain.reason_table import FILTERS, reasons_by_filter
from sluice_allocator.core.placement.index.layout_order import LayoutOrders
from sluice_allocator.core.placement.nodes.device_spec import DeviceSpecs
from sluice_allocator.shell.rpc_answers import pod_asked
from sluice_console.core.simulate.questions import question_of


def pod(**annotations: str) -> PodAsked:
    """A pod of one container with these keys of ours."""
    said = {f"sluice.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
    return PodAsked("default", said, (ContainerRequest("main", uid=1000),), labels={"app": "a"})


def ask(bench: Bench, **annotations: str) -> Simulated:
    return simulate(bench.allocator.ctx, pod(**annotations))[0]


def stands(bench: Bench, request: str) -> RequestState | None:
    found = how_it_stands(bench.allocator.ctx, RequestId(request))
    return found.state if found is not None else None


def test_a_foreign_pod_is_left_alone(bench):
    assert isinstance(ask(bench), AsksNothing)


def together(bench: Bench, *profiles: str) -> list[Simulated]:
    return list(simulate_together(bench.allocator.ctx, [pod(profile=profile) for profile in profiles]))


def test_the_pods_of_a_job_take_room_from_each_other(bench):
    """Each alone would be promised the one place, and all but one would wait."""
    before = ask(bench, profile="1g.5gb")
    bench.limit(gpus=3)
    found = together(bench, "3g.20gb", "7g.40gb", "1g.5gb", "1g.5gb", "1g.5gb")
    assert [type(each) for each in found] == [WouldBind, WouldWait, WouldBind, WouldBind, WouldWait]
    assert len({each.devices[0].grant.start for each in found if isinstance(each, WouldBind)}) == 3
    assert "may have 3 devices and has 3" in found[-1].message
    bench.limit()
    assert ask(bench, profile="1g.5gb") == before


def test_what_would_be_bound_together_is_bound_when_it_is_asked_for(bench):
    """The prediction books, searches and gives back on the live state: it must stay as it was."""
    profiles = ["2g.10gb", "1g.5gb", "3g.20gb"] * 2
    predicted = together(bench, *profiles)
    assert together(bench, *profiles) == predicted
    said = bench.asks(*(asked(f"p{number}", claim(profile=profile)) for number, profile in enumerate(profiles)))
    real = [each.booking.devices[0].start for each in only(msg.Grant, said)]
    assert real == [each.devices[0].grant.start for each in only(WouldBind, predicted)]


ALL_MODES = ("exclusive", "mps", "fractional")
DEEPEST = 9
"""So many objects deep a state is looked at: beyond are the same nodes and GPUs again."""
COMPUTED = (TransitionTable, LayoutOrders, DeviceSpecs)
"""What searches have worked out so far of models and claims, true whatever is booked."""


def state_of(thing: object, path: str = "", above: tuple[int, ...] = ()) -> Iterator[tuple[str, str]]:
    """Every value that can be reached from it, by its path."""
    attributes = {*getattr(thing, "__dict__", ()), *getattr(type(thing), "__slots__", ())}
    if id(thing) in above or len(above) > DEEPEST or callable(thing) or isinstance(thing, COMPUTED):
        return
    if isinstance(thing, (Mapping, list, tuple)):
        members = thing.items() if isinstance(thing, Mapping) else enumerate(thing)
        for key, value in members:
            name = getattr(key, "name", type(key).__name__ if type(key).__eq__ is object.__eq__ else repr(key))
            yield from state_of(value, f"{path}[{name}]", (*above, id(thing)))
    elif isinstance(thing, msgspec.Struct) or not attributes:
        yield path, repr(thing)
    else:
        for name in attributes:
            yield from state_of(getattr(thing, name, None), f"{path}.{name}", (*above, id(thing)))


@pytest.mark.parametrize("fails", [False, True], ids=["answers", "fails"])
def test_a_question_about_several_pods_leaves_the_allocator_as_it_was(empty, monkeypatch, fails):
    """They are booked on the live cluster; pods that wait for their quota were tried again after every question."""
    empty.add_node(snapshot("node-a", (gpu_report("node-a", 0), gpu_report("node-a", 1, mig=False)), modes=ALL_MODES))
    empty.observe(subjects.host(NodeName("node-a")), msg.HostFacts(cpu_cores=16.0, memory_mib=65_536, pods_free=20))
    empty.limit(gpus=4)
    empty.observe(*all_said())
    empty.granted("p1", fractional(30, 10_000))
    empty.request(asked("waits", claim(gpus=4)))
    shared = pod(mode="fractional", sm_partition="40", memory="4Gi")
    pods, ctx = [pod(profile="2g.10gb"), shared, pod(profile="1g.5gb")], empty.allocator.ctx
    assert all(place for _, place in [simulate(ctx, each) for each in pods])  # what they take at least is computed once
    before = sorted(state_of(ctx))
    if fails:
        monkeypatch.setattr("sluice_allocator.core.explain.status.left_over", Mock(side_effect=[(), (), KeyError]))
        with pytest.raises(KeyError):
            list(simulate_together(ctx, pods))
    else:
        assert [type(each) for each in simulate_together(ctx, pods)] == [WouldBind] * 3
    assert sorted(state_of(ctx)) == before


def test_a_simulated_share_says_what_is_left_in_its_home(empty):
    with_gpus(empty, gpu_report("node-a", 0, mig=False)).granted("p1", fractional(30, 10_000))
    (left,) = ask(empty, mode="fractional", sm_partition="40", memory="4Gi").left
    (home,) = left.homes
    assert (home.profile, home.tenants, home.tenants_max) == (None, 2, 48)
    assert (home.sm_percent, home.sm_percent_free) == (100, 30)
    assert home.memory_mib - home.memory_free_mib == 10_000 + 4096
    assert (left.creatable_before, left.creatable_after) == ({}, {})


def test_a_home_in_an_instance_is_made_once(empty):
    """The first share takes slices of the GPU, the second does not."""
    with_gpus(empty, gpu_report("node-a", 0))
    (first,) = ask(empty, mode="mps", memory="4Gi").left
    assert sum(first.creatable_after.values()) < sum(first.creatable_before.values())
    empty.granted("p1", mps(4096))
    found = ask(empty, mode="mps", memory="512Mi")
    (second,), (device,) = found.left, found.devices
    assert second.creatable_after == second.creatable_before
    assert device.grant.share is not None
    assert (device.mode, device.memory_mib) == ("mps", 512)


def test_each_moment_of_a_requests_life_has_its_word(bench):
    """From the decision to the end, derived from the same facts that decide."""
    assert stands(bench, "p1") is None
    decided = bench.request(asked("p1"))
    assert stands(bench, "p1") is RequestState.COMMITTING
    (grant,) = bench.words(decided)
    assert stands(bench, "p1") is RequestState.GRANTED
    bench.land_all(bench.ready(grant))
    assert stands(bench, "p1") is RequestState.BOUND
    bench.withdraw("p1")
    assert stands(bench, "p1") is RequestState.ENDING
    bench.land_all(bench.gone(grant))
    assert stands(bench, "p1") is RequestState.RELEASED


def test_a_waiting_request_is_told_its_turn_and_the_reasons_of_this_moment(bench):
    """Two of one shape wait, and a more important one of another: the second learns that both are before it."""
    bench.bound("p0", claim(profile="7g.40gb"))
    bench.asks(asked("high", claim(profile="4g.20gb"), priority=9))
    bench.asks(*(asked(name, claim(profile="3g.20gb")) for name in ("p1", "p2")))
    found = how_it_stands(bench.allocator.ctx, RequestId("p2"))
    assert (found.state, found.turn) == (RequestState.QUEUED, QueuePosition(0, before=1, waiting=3, ahead=2))
    assert [step.filter for step in found.steps] == ["room"]


def test_a_refused_request_is_told_with_its_refusal(bench):
    bench.asks(asked("p1", claim(gpus=57)))
    found = how_it_stands(bench.allocator.ctx, RequestId("p1"))
    assert found.state is RequestState.REFUSED
    assert found.refusal is not None
    refusal = Refusal(reason=RefusalReason.UNKNOWN_KEY, message="there is no such key")
    rejected = msg.RequestRejected(revision=1, source=FOLDER, origin="p2.yaml", refusal=refusal)
    bench.observe(subjects.request(RequestId("p2")), rejected)
    assert stands(bench, "p2") is RequestState.REJECTED


def reason(word: WaitReason, count: int = 1, of: str = "nodes") -> ReasonCount:
    return ReasonCount(reason=word, count=count, of=of)


@pytest.mark.parametrize("word", list(WaitReason))
def test_every_reason_belongs_to_a_filter(word):
    assert [step.reasons for step in reasons_by_filter([reason(word)])] == [(reason(word),)]


def test_filters_are_told_in_the_order_in_which_a_place_is_looked_for():
    words = (
        WaitReason.QUOTA_EXCEEDED,
        WaitReason.TOO_FEW_GPUS_ON_NODE,
        WaitReason.GPU_LAYOUT_FULL,
        WaitReason.GPU_MODEL_MISMATCH,
    )
    steps = reasons_by_filter([reason(word, 10 - at) for at, word in enumerate((*words, WaitReason.NODE_TAINTED))])
    assert tuple(step.filter for step in steps) == FILTERS


def test_an_answer_about_a_hundred_classes_of_gpus_can_still_be_read(empty):
    """The reasons are bounded at any fleet size, and the rest is counted."""
    for number in range(100):
        gpu = gpu_report(f"node-{number}", 0, mig=False)
        empty.add_node(snapshot(f"node-{number}", (msgspec.structs.replace(gpu, model=f"GPU of kind {number}"),)))
    found = ask(empty, profile="1g.5gb")
    listed = sum(len(step.reasons) for step in found.steps)
    assert listed < 40
    assert listed + found.more == 101  # each kind, and that no node can fit it


def test_a_simulated_pod_with_claims_is_where_its_kubelet_hands_over_and_on_one_gpu_if_it_must(empty):
    """`matchAttribute` on the parent's UUID: neither of the first two GPUs has room for all four instances."""
    text = (Path(__file__).parents[3] / "data/dra/gpu-test4.yaml").read_text()
    read = read_manifests("f", text, limits=ManifestLimits(), asks=RequestLimits(), by_claims=True)
    pod = next(each for each in read if each.ask is not None)
    question = pod_asked(question_of(pod))

    empty.add_nodes("tickets")
    empty.add_node(snapshot("node-a", tuple(gpu_report("node-a", n) for n in (0, 1)), kubelet_hands_over=True))
    for name in ("p1", "p2"):
        empty.bound(name, claim(profile="3g.20gb", only=msg.DeviceFilter(uuids=(f"GPU-node-a-{int(name[1]) - 1}",))))
    waits = simulate(empty.allocator.ctx, question)[0]
    empty.add_node(snapshot("node-b", (gpu_report("node-b", 0),), kubelet_hands_over=True))
    found = simulate(empty.allocator.ctx, question)[0]

    assert isinstance(waits, WouldWait)
    assert {each.grant.gpu for each in found.devices} == {"GPU-node-b-0"}
    assert len(found.devices) == 4


def test_what_concerns_most_is_told_first():
    (step,) = reasons_by_filter([reason(WaitReason.GPU_LAYOUT_FULL, count, f"model {count}") for count in (1, 3, 2)])
    assert [each.count for each in step.reasons] == [3, 2, 1]
