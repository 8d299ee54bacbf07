"""What nodes may be like, and what may become of them: small fleets of a few models, and every change of facts."""

import msgspec
from factories.scheduling.allocator import gpu_report, snapshot
from hypothesis import strategies as st
from judges.placements import BoardTruth, NodeTruth, is_to_be_had, profile_of, taken_from_us, why_not_together

from sluice.contracts import messages as msg

NODES = ("node-a", "node-b", "node-c", "node-d")
KINDS = ("a100-40gb", "a100-40gb", "a30-24gb", "a100-40gb without MIG", "T4", "a100-40gb fixed")
LAYOUTS: tuple[tuple[tuple[str, int, int], ...], ...] = (
    (("3g.20gb", 0, 4), ("3g.20gb", 4, 4)),
    (("4g.20gb", 0, 4), ("2g.10gb", 4, 2), ("1g.5gb", 6, 1)),
    (("1g.5gb", 0, 1), ("1g.5gb", 1, 1), ("2g.10gb", 2, 2), ("1g.10gb", 4, 2), ("1g.5gb+me", 6, 1)),
    (("7g.40gb", 0, 8),),
    (),
)
"""Of GPUs whose layout is fixed."""
ALL_MODES = ("exclusive", "mps", "fractional")


def gpu(node: str, index: int, kind: str, numa: int | None, clients: int) -> msg.GpuReport:
    if kind == "T4":
        known = gpu_report(node, index, mig=False, numa_node=numa, mps_clients_max=clients, profiles=())
        sizes = {"memory_mib": 15360, "multiprocessors": 40, "memory_slices": 0, "compute_slices": 0}
        return msgspec.structs.replace(known, model="Tesla T4", **sizes)
    model, _, how = kind.partition(" ")
    facts = {"numa_node": numa, "mps_clients_max": clients, "fixed_layout": how == "fixed"}
    return gpu_report(node, index, model=model, mig=how != "without MIG", **facts)


def made_by_hand(report: msg.GpuReport, layout: tuple[tuple[str, int, int], ...]) -> msg.GpuReport:
    """The same GPU as its administrator has partitioned it."""
    made = (
        msg.InstanceReport(gi_id=number, profile=name, start=start, size=size, uuid=f"MIG-{number}")
        for number, (name, start, size) in enumerate(layout, start=1)
    )
    return msgspec.structs.replace(report, instances=tuple(made))


@st.composite
def nodes(draw: st.DrawFn, name: str) -> msg.NodeSnapshot:
    """A node of one to four GPUs."""
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4))
    numas = draw(st.sampled_from([(None,) * 4, (0, 0, 1, 1), (0, 1, 0, None)]))
    clients = draw(st.sampled_from([3, 48]))
    gpus = tuple(gpu(name, n, kind, numas[n], clients) for n, kind in enumerate(kinds))
    gpus = tuple(made_by_hand(each, draw(st.sampled_from(LAYOUTS))) if each.fixed_layout else each for each in gpus)
    if draw(st.booleans()):
        gpus = linked(gpus)
    modes = draw(st.sampled_from([ALL_MODES, ALL_MODES, ("exclusive",), ("exclusive", "mps")]))
    hands_over = draw(st.sampled_from([True, True, False]))
    return snapshot(name, gpus, modes=modes, time_quota=draw(st.booleans()), kubelet_hands_over=hands_over)


def linked(gpus: tuple[msg.GpuReport, ...]) -> tuple[msg.GpuReport, ...]:
    """The same with NVLinks between neighbours: 0 and 1, 2 and 3."""
    uuids = [each.uuid for each in gpus]
    return tuple(
        msgspec.structs.replace(each, links={uuids[n ^ 1]: 200} if (n ^ 1) < len(uuids) else {})
        for n, each in enumerate(gpus)
    )


LLM = (msg.NodeExpression(key="app", operator="In", values=("llm",)),)
OTHERS = (
    msg.OtherPods(namespace="default", labels={"app": "llm"}, count=2),
    msg.OtherPods(namespace="other", labels={"app": "etl"}, leaving=True),
    msg.OtherPods(namespace="default", labels={"tier": "web"}, leaving=True),
    msg.OtherPods(
        namespace="web",
        apart=(msg.PodTerm(topology_key="kubernetes.io/hostname", selector=LLM, namespaces=("default",)),),
    ),
    msg.OtherPods(namespace="web", apart=(msg.PodTerm(topology_key="zone", namespaces=("*",)),)),
)
"""Pods that are none of ours."""
DESCRIBED = st.tuples(
    st.sampled_from([None, (0, 0, 0), (6000, 4096, 0), (0, 0, 2)]),
    st.builds(
        msg.HostFacts,
        cpu_cores=st.sampled_from([2.0, 8.0, 64.0]),
        memory_mib=st.sampled_from([4096, 262144]),
        pods_free=st.sampled_from([2, 110]),
        resources=st.sampled_from([{}, {"example.com/nic": 2}]),
        labels=st.fixed_dictionaries(
            {},
            optional={
                "kubernetes.io/hostname": st.sampled_from(["one", "other"]),
                "zone": st.sampled_from(["a", "b"]),
                "rack": st.sampled_from(["1", "2", "x"]),
            },
        ),
        taints=st.sampled_from(
            [
                (),
                (),
                (msg.Taint(key="gpu"),),
                (msg.Taint(key="old", value="yes", effect="NoExecute"),),
                (msg.Taint(key="busy", effect="PreferNoSchedule"),),
                (msg.Taint(key="node.kubernetes.io/unschedulable"),),
                (msg.Taint(key="node.kubernetes.io/not-ready", effect="NoExecute"), msg.Taint(key="gpu")),
                (msg.Taint(key="node.kubernetes.io/memory-pressure"),),
                (msg.Taint(key="ToBeDeletedByClusterAutoscaler", value="1"),),
            ]
        ),
        cordoned=st.sampled_from([False, False, False, True]),
        source=st.sampled_from(["", "folder"]),
        ports=st.sampled_from([(), (), (msg.HostPort(port=80),)]),
        others=st.lists(st.sampled_from(OTHERS), max_size=2).map(tuple),
    ),
)


def offering(described: tuple[tuple[int, int, int] | None, msg.HostFacts]) -> msg.HostFacts:
    """The same node, and what it offers in all: what is free, and what others take; or nothing is said of that."""
    taken, facts = described
    if taken is None:
        return facts
    nics = facts.resources.get("example.com/nic", 0) + taken[2]
    offers = msg.HostRoom(
        cpu_milli=round(facts.cpu_cores * 1000) + taken[0],
        memory_mib=facts.memory_mib + taken[1],
        resources={"example.com/nic": nics} if nics else {},
    )
    return msgspec.structs.replace(facts, allocatable=offers)


HOSTS = st.none() | st.none() | DESCRIBED.map(offering)
"""What a node has besides GPUs."""


def changed(draw: st.DrawFn, report: msg.GpuReport, board: BoardTruth) -> msg.GpuReport:
    """The same GPU after something happened to it that may happen while this is booked on it."""
    what = draw(st.sampled_from(["health", "foreign", "foreign gone", "quarantine", "repaired", "MIG"]))
    replace = msgspec.structs.replace
    if report.fixed_layout and what in {"foreign", "foreign gone"}:
        return relaid(draw, report, board)
    if what == "health":
        return replace(report, healthy=not report.healthy)
    if what == "foreign gone":
        return replace(report, instances=())
    if what == "quarantine" and report.mig_enabled and report.profiles:
        start = draw(st.integers(0, report.memory_slices - 1))
        size = draw(st.integers(1, report.memory_slices - start))
        return replace(report, quarantined=(msg.PlacementReport(start=start, size=size),))
    if what == "repaired":
        return replace(report, quarantined=())
    if what == "MIG" and report.profiles and not board.spans():
        return replace(report, mig_enabled=not report.mig_enabled, instances=(), quarantined=())
    if what == "foreign" and report.mig_enabled and report.profiles:
        profile = draw(st.sampled_from(report.profiles))
        place = draw(st.sampled_from(profile.placements))
        foreign, _ = taken_from_us(report)
        spans = [*board.spans(), *foreign, (profile.name, place.start, place.size)]
        if why_not_together(report, spans) is None:
            made = msg.InstanceReport(gi_id=90 + len(foreign), profile=profile.name, start=place.start, size=place.size)
            return replace(report, instances=(*report.instances, made))
    return report


def relaid(draw: st.DrawFn, report: msg.GpuReport, board: BoardTruth) -> msg.GpuReport:
    """The administrator takes an instance away, a process uses one, or one is made where nothing is booked."""
    replace = msgspec.structs.replace
    there = list(report.instances)
    what = draw(st.sampled_from(["taken away", "used", "made"]))
    if there and what != "made":
        at = draw(st.integers(0, len(there) - 1))
        changed_one = replace(there[at], unusable="" if there[at].unusable else "it is used by python 7")
        there[at : at + 1] = [changed_one] if what == "used" else []
    elif report.mig_enabled:
        profile = draw(st.sampled_from(report.profiles))
        place = draw(st.sampled_from(profile.placements))
        spans = {(each.profile, each.start, each.size): None for each in there} | dict.fromkeys(board.spans())
        span = (profile.name, place.start, place.size)
        back = span in board.spans() and span not in [(each.profile, each.start, each.size) for each in there]
        if back or why_not_together(report, [*spans, span]) is None:
            number = 1 + max((each.gi_id for each in there), default=0)
            there.append(msg.InstanceReport(gi_id=number, profile=span[0], start=span[1], size=span[2], uuid="MIG-new"))
    return replace(report, instances=tuple(there))


def smallest_sum(report: msg.GpuReport, board: BoardTruth) -> int:
    """How many of its smallest plain instances an unchanged empty GPU takes, found by trying."""
    foreign, out = taken_from_us(report)
    smallest = min(report.profiles, key=lambda p: (p.compute_slices, p.memory_mib, len(p.name), p.name))
    spans = [*board.spans(), *[span for span in foreign if profile_of(report, str(span[0]))]]
    made = 0
    for place in smallest.placements:
        span = (smallest.name, place.start, place.size)
        free = not out & set(range(place.start, place.start + place.size)) and is_to_be_had(report, span)
        if free and why_not_together(report, [*spans, span]) is None:
            spans.append(span)
            made += 1
    return made


PASSES = ("node.kubernetes.io/", "ToBeDeletedByClusterAutoscaler")
"""Taints that Kubernetes and autoscalers set, and take away again."""


def emptied(node: NodeTruth) -> NodeTruth:
    """A node when no pod is on it, its GPUs are mended, and nothing keeps pods away but what was put there for that."""
    replace = msgspec.structs.replace
    host = node.host
    if host is not None:
        offers, room = host.allocatable, {"cpu_cores": 1e6, "memory_mib": 1 << 40}
        room |= {"resources": {"example.com/nic": 1 << 20}}
        if offers is not None:
            room = {
                "cpu_cores": offers.cpu_milli / 1000,
                "memory_mib": offers.memory_mib,
                "resources": offers.resources,
            }
        taints = tuple(taint for taint in host.taints if not taint.key.startswith(PASSES))
        host = replace(host, **room, pods_free=110, taints=taints, cordoned=False)
    gpus = tuple(
        replace(
            gpu,
            healthy=True,
            quarantined=(),
            instances=tuple(replace(each, unusable="") for each in gpu.instances) if gpu.fixed_layout else (),
        )
        for gpu in node.snapshot.gpus
    )
    return NodeTruth(replace(node.snapshot, gpus=gpus), host, pods_max=node.pods_max)
