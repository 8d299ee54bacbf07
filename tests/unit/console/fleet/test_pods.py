"""`sluice pods`: one state and one sentence for what became of each request."""

import io
import time

import msgspec
from rich.console import Console

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.reasons import ReasonCount, Refusal, RefusalReason, WaitReason
from sluice_console.core.documents import (
    EarlierDocument,
    OutDocument,
    PodsDocument,
    StandingDocument,
    StepDocument,
    StoryDocument,
)
from sluice_console.core.fleet.pending_releases import being_freed
from sluice_console.core.fleet.pods import pods_document, variables_text
from sluice_console.shell.output.printer import show_pods, show_story

REFUSAL = Refusal(reason=RefusalReason.OUT_OF_RANGE, message="there is no such share", field="sm", value="120")
FULL = ReasonCount(reason=WaitReason.GPU_LAYOUT_FULL, count=4, of="A100")


def only(fleet_state, **options):
    (pod,) = pods_document(fleet_state, **options).pods
    return pod


def bound(make, **words):
    """The one pod, with its slice; `words` are others than its plain ones."""
    plain = {"request": make.asked(), "ledger": make.grant(), "binding": make.bound()}
    return only(make.fleet_state(**(plain | words)))


def test_a_waiting_pod_carries_its_reasons(make):
    pod = only(make.fleet_state(request=make.asked(), waiting=make.pending("4 of 4 GPUs are full", FULL)))
    assert (pod.state, pod.message, pod.reasons) == ("waiting", "waits: 4 of 4 GPUs are full", (FULL,))


def test_an_old_reason_does_not_speak_for_an_edited_request(make):
    assert only(make.fleet_state(request=make.asked(revision=2), waiting=make.pending())).state == "requested"


def test_a_failing_slice_says_why_while_it_is_made(make):
    failed = msg.SliceFailed(allocation=make.allocation, request=make.request, revision=1, error="x", message="no room")
    pod = only(make.fleet_state(request=make.asked(), ledger=make.grant(), slice=failed))
    assert pod.message.endswith("but: no room")


def test_a_bound_pod_shows_the_devices_its_containers_get(make):
    pod = bound(make)
    assert (pod.state, pod.node, pod.containers[0].visible_devices) == ("bound", make.node, "MIG-1")


def test_a_refusal_of_the_allocator_and_one_of_the_source_look_alike(make):
    refused = msg.Refused(request=make.request, request_revision=1, refusal=REFUSAL)
    rejected = msg.RequestRejected(revision=1, source=make.source, origin="a.yaml", refusal=REFUSAL)
    by_allocator = only(make.fleet_state(request=make.asked(), binding=refused))
    by_source = only(make.fleet_state(request=rejected))
    assert (by_allocator.state, by_allocator.message) == (by_source.state, by_source.message)
    assert (by_source.state, by_source.refusal) == ("refused", REFUSAL)


def test_a_withdrawn_pod_is_ending_until_its_place_is_free(make):
    pod = bound(make, request=make.withdrawn(), ledger=make.revoke())
    assert (pod.state, pod.name, pod.node) == ("ending", "train", make.node)


def test_a_slice_without_a_request_is_not_hidden(make):
    """After the broker was wiped, before its source published again."""
    pod = only(make.fleet_state(ledger=make.grant()))
    assert (pod.state, pod.name) == ("ending", "train")
    assert "no request claims" in pod.message


def test_a_pod_with_a_share_says_how_much_of_what_it_has(make):
    """`has 4096 MiB` could be a slice of its own: what others use beside it must be seen."""
    pod = bound(make, ledger=make.grant(make.shared(make.allocation, "train")))
    assert pod.message.endswith(", as fractional share (4096 MiB, 20 % of the SMs, 30 to 100 % of the time)")
    assert [device.share.memory_mib for device in pod.devices] == [4096]


def test_an_adjusted_share_is_shown_as_it_is_now(make):
    """`has 3g.20gb` would be what it asked for once, and not what its processes may use."""
    grant = msgspec.structs.replace(make.grant(make.shared(make.allocation, "train")), revision=2)
    assert bound(make, ledger=grant).message == (
        f"has fractional share (4096 MiB, 20 % of the SMs, 30 to 100 % of the time) on {make.node}, "
        "adjusted from the 3g.20gb that it asked for"
    )


def test_a_pod_that_a_larger_profile_serves_is_shown_with_what_it_has(make):
    """Its owner would wonder why the memory that it sees is not what it asked for."""
    booking = msgspec.structs.replace(make.booking(profile="4g.20gb"), instead_of="3g.20gb")
    pod = bound(make, ledger=make.grant(booking))
    assert pod.message == f"has 4g.20gb on {make.node}, larger than the 3g.20gb that it asked for"


def test_a_pod_that_is_being_moved_is_shown_with_what_it_has(make):
    """The place that is kept for it elsewhere would be shown as its devices, or hide them."""
    fleet_state = make.fleet_state(request=make.asked(), ledger=make.grant(), binding=make.bound())
    kept = msgspec.structs.replace(make.booking(start=0), allocation="z_9", node="gpu-9")
    moved = msgspec.structs.replace(make.grant(kept), after=(make.allocation,), evict=True)
    fleet_state.values[subjects.ledger("gpu-9", "z_9").subject] = moved
    pod = only(fleet_state)
    assert (pod.node, [device.start for device in pod.devices]) == (make.node, [4])


def test_a_promised_pod_waits_until_those_before_it_have_left(make):
    """`is being made` for as long as another pod's training runs reads like a node that hangs."""
    grant = msgspec.structs.replace(make.grant(), after=("other_1",))
    why = "its place on gpu-1 is reserved and waits for default/other to end"
    pod = only(make.fleet_state(request=make.asked(), ledger=grant, waiting=make.pending(why)))
    assert (pod.state, pod.message) == ("waiting", f"waits: {why}")
    assert only(make.fleet_state(request=make.asked(), ledger=grant)).state == "making"


def test_a_pod_shows_what_its_user_was_warned_of(make):
    """The daemon died under it: its processes ended for no fault of theirs."""
    pod = bound(make, binding=make.bound(warnings=("its MPS daemon died and was started again",)))
    assert pod.warnings == ("its MPS daemon died and was started again",)
    assert "warning: its MPS daemon died" in shown(show_pods, PodsDocument(pods=(pod,)))
    assert "warning: its MPS daemon died" in shown(show_story, StoryDocument(pod=pod, steps=()))


def test_a_container_with_a_share_is_shown_with_all_it_is_told(make):
    """Debugging an MPS client needs its pipe directory and its limits; without MPS they do not matter."""
    daemon = {"mps_pipe_directory": "/mps/h/pipe", "mps_log_directory": "/mps/h/log"}
    limits = {"active_thread_percentage": 20, "pinned_memory_limit": "0=4096M"}
    shared = msg.ContainerDevices(container="main", visible_devices="GPU-1", **daemon, **limits)
    assert variables_text(shared) == [
        "NVIDIA_VISIBLE_DEVICES=GPU-1",
        "CUDA_MPS_PIPE_DIRECTORY=/mps/h/pipe",
        "CUDA_MPS_LOG_DIRECTORY=/mps/h/log",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=20",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=4096M",
    ]
    assert variables_text(make.bound().containers[0]) == ["NVIDIA_VISIBLE_DEVICES=MIG-1"]


def shown(show, document) -> str:
    text = io.StringIO()
    show(Console(file=text, width=200), document)
    return text.getvalue()


def test_a_story_of_several_days_says_which(make):
    """Times alone of a pod that waited over a weekend read as if it had waited for minutes."""
    pod = only(make.fleet_state(request=make.asked()))
    today = time.strftime("%Y-%m-%d", time.gmtime())
    days = ("2026-01-02", "2026-01-05", today)
    steps = tuple(
        StepDocument(time=f"{day}T10:00:0{number}.000+00:00", subject="", type="Pending", text="waits")
        for number, day in enumerate(days)
    )
    assert shown(show_story, StoryDocument(pod=pod, steps=steps)).splitlines()[1:-1] == [
        "  2026-01-02 10:00:00.000  waits",
        "  2026-01-05 10:00:01.000  waits",
        "  10:00:02.000  waits",
    ]


def test_a_timeline_says_why_a_pod_started_again_and_what_helps_a_waiting_one(make):
    """`no free place of that size` alone leaves its owner with nothing to do."""
    pod = only(make.fleet_state(request=make.asked(), waiting=make.pending("full", FULL)))
    earlier = EarlierDocument(request="r1", cause="gpu-1 is drained (fans)")
    story = StoryDocument(pod=pod, earlier=earlier, steps=())
    assert shown(show_story, story).splitlines() == [
        f"default/train ({make.request})",
        "  before it, r1 of the same name was evicted: gpu-1 is drained (fans)",
        "now: waits: full",
        "  4 x A100: GpuLayoutFull",
        "  what helps: It starts when a pod with a slice there ends; a smaller slice may start sooner.",
    ]


def test_a_pod_that_waits_is_told_whose_place_is_being_freed_and_what_keeps_it(make):
    """`no free place` sends a person to the pods that run, and the one that is in the way has been deleted."""
    leaving, seen = make.revoke("pod deleted"), make.inventory(make.gpu_report())
    why = "processes of its pod still run: sh 7"
    stuck = msg.SliceQuarantined(allocation=make.allocation, request=make.request, revision=2, message=why)
    here, elsewhere = (
        OutDocument(filter="room", reasons=(msgspec.structs.replace(FULL, of=model),))
        for model in ("NVIDIA A100-SXM4-40GB", "A30")
    )
    now = StandingDocument(state="waiting", message="waits: full", steps=(here,))
    fleet_state = make.fleet_state(ledger=leaving, inventory=seen)
    place = f"3g.20gb at 4 of {make.gpu[:12]} on {make.node} is being freed by default/train"
    assert being_freed(fleet_state, now) == (f"{place} (pod deleted)",)
    freeing = being_freed(make.fleet_state(ledger=leaving, inventory=seen, slice=stuck), now)
    assert freeing == (f"{place} ({why})",)
    (pod,) = pods_document(make.fleet_state(request=make.asked())).pods
    told = shown(show_story, StoryDocument(pod=pod, steps=(), standing=now, freeing=freeing))
    assert f"  being freed: {freeing[0]}\n" in told
    assert being_freed(fleet_state, msgspec.structs.replace(now, steps=(elsewhere,))) == ()
    assert being_freed(fleet_state, None) == ()


def test_the_allocators_word_is_not_told_twice(make):
    """The same long sentence in two lines makes a person look for the difference."""
    pod = only(make.fleet_state(request=make.asked(), waiting=make.pending()))
    turn, step = {"before": 1, "ahead": 2, "waiting": 3}, OutDocument(filter="room", reasons=(FULL,))
    now = StandingDocument(state="waiting", message="waits: full", steps=(step,), **turn)
    same = shown(show_story, StoryDocument(pod=pod, steps=(), standing=now)).splitlines()
    assert same[1:] == [
        "now: waits: full",
        "  in the queue: 2 before it (1 of its kind), 3 in all",
        "  free capacity: filtered out",
        "    4 x A100: GpuLayoutFull",
    ]
    newer = msgspec.structs.replace(now, message="waits: fuller", waiting=0)
    other = shown(show_story, StoryDocument(pod=pod, steps=(), standing=newer)).splitlines()
    assert other[1:3] == ["now: waits: full", "  the allocator says now: waits: fuller"]


def test_a_binding_of_before_a_wipe_does_not_make_a_waiting_pod_look_bound(make):
    """It landed late, in the emptied broker. Its owner would look for what a pod does that waits."""
    late, now = make.bound(incarnation="1"), make.pending("full", FULL)
    fleet_state = make.fleet_state(request=make.asked(), binding=late, waiting=now)
    assert only(fleet_state).state == "bound"
    fleet_state.incarnation = "2"
    assert (only(fleet_state).state, fleet_state.bindings()) == ("waiting", {})
