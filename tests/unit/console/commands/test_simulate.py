"""`sluice simulate -f`: the allocator's answer as a person reads it, and as a script does."""

import pytest

from sluice.contracts.manifests import ManifestLimits, read_manifests
from sluice.contracts.messages import PodGroup
from sluice.contracts.pb import allocator_pb2 as pb
from sluice.contracts.pb import node_pb2
from sluice.contracts.reasons import ReasonCount, Refusal, RefusalReason, WaitReason
from sluice.contracts.request_syntax import RequestLimits
from sluice_console.core.documents import SimulatedDocument
from sluice_console.core.simulate.admission import with_warnings
from sluice_console.core.simulate.answers import (
    idle_pod,
    proposal_lines,
    reason_text,
    refused_pod,
    simulated_lines,
    simulated_pod,
    standing,
    with_group,
)
from sluice_console.core.simulate.questions import question_of
from sluice_console.shell.simulate.live import exit_code

OF_POOL = {"of": "A100", "on": "pool research", "known_as": "CardMigTopologyInfeasible"}
FULL = pb.Step(filter="room", reasons=[pb.Reason(reason="GpuLayoutFull", count=4, **OF_POOL)])
GPU = "GPU-3f0e6a5c-0001"
PLACE = {"profile": "3g.20gb", "start": 4, "size": 4}
PART = {"mode": node_pb2.MODE_FRACTIONAL, "memory_mib": 4096}
SHARE = node_pb2.Share(**PART, uid=1000, sm_partition=20)
DEVICE = pb.PlacedDevice(**PLACE, **PART, container="main", gpu=GPU, model="A100", sm_percent=20, share=SHARE)
ROOM = {"memory_mib": 20096, "memory_free_mib": 16000, "sm_percent": 42, "sm_percent_free": 21}
HOME = pb.HomeLeft(**PLACE, **ROOM, tenants=1, tenants_max=20)
BEFORE, AFTER = {"1g.5gb": 7, "7g.40gb": 1}, {"1g.5gb": 4}
LEFT = pb.LeftOver(gpu=GPU, creatable_before=BEFORE, creatable_after=AFTER, homes=[HOME])
BOUND = pb.SimulateResponse(bound=pb.WouldBeBound(node="gpu-1", devices=[DEVICE], left=[LEFT], others=[FULL], more=3))
WAITS = pb.SimulateResponse(waits=pb.WouldWait(message="4 x A100: no free place", steps=[FULL]))


def test_a_person_reads_place_what_is_left_and_why_not_elsewhere():
    assert simulated_lines(simulated_pod("ns", "train", "train.yaml", BOUND)) == [
        "ns/train: would be bound on gpu-1",
        "  main: fractional, a share of 3g.20gb at 4 of GPU-3f0e6a5c (A100): 4096 MiB, 20 % of the SMs",
        "  its home on GPU-3f0e6a5c (3g.20gb) has left: 16000 of 20096 MiB, 21 of 42 % of the SMs; 1 of 20 tenants",
        "  leaves on GPU-3f0e6a5c: fits 4x1g.5gb",
        "  why not elsewhere:",
        "    free capacity: filtered out",
        "      4 x A100 (pool research): GpuLayoutFull (known elsewhere as CardMigTopologyInfeasible)",
        "    and 3 more reasons",
    ]


def test_a_whole_gpu_whose_driver_tells_no_memory_is_not_said_to_have_none():
    which = {"container": "main", "gpu": "GPU-1", "model": "NVIDIA GB10"}
    whole = pb.PlacedDevice(**which, mode=node_pb2.MODE_EXCLUSIVE, sm_percent=100)
    bound = pb.SimulateResponse(bound=pb.WouldBeBound(node="gb", devices=[whole]))
    assert simulated_lines(simulated_pod("ns", "chat", "chat.yaml", bound))[1] == (
        "  main: exclusive, all of GPU-1 (NVIDIA GB10): memory unknown, 100 % of the SMs"
    )


def test_a_newer_allocators_words_are_left_out_and_stop_nothing():
    newer = pb.Step(filter="weather", reasons=[])
    mixed = pb.Step(filter="room", reasons=[pb.Reason(reason="GpuTooCold", count=1, of="A100")])
    answer = pb.SimulateResponse(waits=pb.WouldWait(message="m", steps=[newer, mixed, FULL]))
    pod = simulated_pod("ns", "train", "train.yaml", answer)
    assert [(step.filter, len(step.reasons)) for step in pod.steps] == [("room", 0), ("room", 1)]
    placed = pb.WouldBeBound(node="n", devices=[pb.PlacedDevice(mode=99, share=node_pb2.Share(mode=99))])
    (device,) = simulated_pod("ns", "train", "train.yaml", pb.SimulateResponse(bound=placed)).devices
    assert (device.mode, device.share) == ("unknown", None)
    assert standing(pb.ExplainResponse(state=99)).state == "unknown"


def test_a_waiting_requests_turn_is_shown():
    turn = pb.Turn(before=2, waiting=9, ahead=5)
    answer = pb.ExplainResponse(state=pb.REQUEST_STATE_QUEUED, message="waits: full", turn=turn, steps=[FULL])
    now = standing(answer)
    assert (now.state, now.before, now.ahead, now.waiting, len(now.steps)) == ("queued", 2, 5, 9, 1)
    answer.turn.ahead = 0
    assert standing(answer).ahead == 2, "of an older allocator at least those of its kind are known"


def test_who_could_make_room_is_shown_with_what_it_costs():
    """A person who decides about restarts must see whose they are, and whether the allocator does it."""
    moves = [
        pb.MovedPod(namespace="lab", name="a", from_node="n1", to_node="n2", memory_mib=4864, rested=True),
        pb.MovedPod(namespace="lab", name="b", from_node="n1", to_node="n3", memory_mib=9856),
    ]
    plan = pb.MoveProposal(node="n1", moves=moves, gains_mib=40320, moves_mib=14720)
    now = standing(pb.ExplainResponse(state=pb.REQUEST_STATE_QUEUED, message="waits", steps=[FULL], proposal=plan))
    assert now.proposal is not None
    assert proposal_lines(now.proposal) == [
        "it would fit on n1 (40320 MiB) if movable pods made room: 2 restarts, 14720 MiB moved",
        "  lab/a (4864 MiB) from n1 to n2",
        "  lab/b (9856 MiB) from n1 to n3, once it has run long enough on its node",
        "  not applied: the allocator moves pods only where its setting `defragment` is true",
    ]
    assert standing(pb.ExplainResponse(state=pb.REQUEST_STATE_QUEUED)).proposal is None


@pytest.mark.parametrize(("answers", "code"), [([], 0), (["b", "n"], 0), (["b", "w"], 5), (["w", "r"], 6), (["n"], 0)])
def test_the_exit_code_is_the_worst_of_the_answers(answers, code):
    """0 bound now, 5 one would wait, 6 one would be refused."""
    refusal = Refusal(reason=RefusalReason.OUT_OF_RANGE, message="m")
    pods = {
        "b": simulated_pod("n", "p", "f", BOUND),
        "w": simulated_pod("n", "p", "f", WAITS),
        "r": refused_pod("n", "p", "f", refusal),
        "n": idle_pod("n", "p", "f"),
    }
    assert exit_code(SimulatedDocument(pods=tuple(pods[each] for each in answers))) == code


def test_a_person_reads_what_a_cluster_would_warn_of():
    """Below the answer, one line each; a pod that is refused has other worries."""
    warned = with_warnings(idle_pod("n", "p", "f"), ("its images see no GPU",))
    assert simulated_lines(warned) == ["n/p: requests nothing from Sluice", "  warning: its images see no GPU"]
    refusal = Refusal(reason=RefusalReason.INVALID_VALUE, message="wrong", field="a", value="b")
    assert with_warnings(refused_pod("n", "p", "f", refusal), ("x",)).warnings == ()


MANIFEST = """
metadata:
  name: train
  annotations: {sluice.dev/priority: "5", of/others: text}
kind: Pod
spec:
  securityContext: {runAsUser: 1000}
  nodeSelector: {zone: a}
  tolerations: [{key: gpu, operator: Exists}]
  affinity:
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms: [{matchExpressions: [{key: rack, operator: In, values: [r1, r2]}]}]
  containers:
  - name: main
    resources: {requests: {cpu: 500m, memory: 1Gi, example.com/nic: 1}, limits: {nvidia.com/gpu: 1}}
"""


def test_everything_that_a_manifest_says_reaches_the_allocator():
    """Annotations, resources and user as they were written; what it needs of its node as it was read."""
    (pod,) = read_manifests("f", MANIFEST, limits=ManifestLimits(), asks=RequestLimits())
    question = question_of(pod)
    (container,) = question.containers
    assert dict(question.annotations) == {"sluice.dev/priority": "5"}
    assert (dict(container.limits), container.run_as_user) == ({"nvidia.com/gpu": "1"}, 1000)
    assert (question.host.room.cpu_milli, question.host.room.memory_mib) == (500, 1024)
    assert dict(question.host.room.resources) == {"example.com/nic": 1}
    assert dict(question.host.node_selector) == {"zone": "a"}
    assert [(each.key, each.operator) for each in question.host.tolerations] == [("gpu", "Exists")]
    (term,) = question.host.affinity
    assert [(each.key, each.operator, list(each.values)) for each in term.expressions] == [("rack", "In", ["r1", "r2"])]


def test_an_amount_over_a_quota_is_no_number_of_things():
    over = "MiB of memory over the quota of namespace lab"
    exceeded = ReasonCount(reason=WaitReason.QUOTA_EXCEEDED, count=11904, of=over)
    assert reason_text(exceeded).startswith(f"11904 {over}: ")
    full = ReasonCount(reason=WaitReason.GPU_LAYOUT_FULL, count=4, of="A100")
    assert reason_text(full).startswith("4 x A100: GpuLayoutFull")


def test_a_pod_of_a_job_is_not_promised_a_start_of_its_own():
    """`would be bound` of one rank, whose job does not fit as a whole, would send its owner looking for a fault."""
    alone = simulated_pod("default", "rank-0", "job.yaml", pb.SimulateResponse(bound=pb.WouldBeBound(node="gpu-1")))
    group = PodGroup(name="job", size=2)
    assert with_group(alone, group).message == (
        "would be bound on gpu-1, evaluated alone; the 2 pods of group job start together or not at all"
    )
    waits = simulated_pod("default", "rank-0", "job.yaml", pb.SimulateResponse(waits=pb.WouldWait(message="full")))
    assert with_group(waits, group) == waits
