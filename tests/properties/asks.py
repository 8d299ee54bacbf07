"""What may be asked for: every mode, size, filter, constraint and policy, mixed."""

from hypothesis import strategies as st
from msgspec.structs import replace
from properties.facts import NODES

from sluice.contracts import messages as msg
from sluice.contracts.ids import GpuUuid, SourceName
from sluice.contracts.policy_names import GPU_POLICIES, NODE_POLICIES
from sluice_allocator.core.placement import PlaceRequest
from sluice_allocator.core.placement.affinity.term_counts import PeerPod, terms_of

PROFILES = (
    *("1g.5gb", "1g.5gb", "1g.5gb+me", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"),
    *("1g.6gb", "1g.6gb+me", "2g.12gb", "2g.12gb+me", "4g.24gb"),
)
GPU_CHAINS = ("", "", *GPU_POLICIES, "numa,binpack", "mutex,spread")
UUIDS = [GpuUuid(f"GPU-{node}-{index}") for node in NODES for index in range(4)]
"""Of GPUs that may be there; one that is not is a mistyped name."""
SOME_UUIDS = st.just(()) | st.just(()) | st.lists(st.sampled_from(UUIDS), max_size=3, unique=True).map(tuple)
LIMITED = st.builds(
    msg.DeviceFilter,
    models=st.sampled_from([(), (), ("a100",), ("A30", "T4")]),
    not_models=st.sampled_from([(), (), ("a100",)]),
    uuids=SOME_UUIDS,
    not_uuids=SOME_UUIDS,
)
FILTERS = st.just(msg.ANY_DEVICE) | st.just(msg.ANY_DEVICE) | st.just(msg.ANY_DEVICE) | LIMITED
SIZES = st.sampled_from(
    [
        *({"profile": name} for name in PROFILES),
        *({} for _ in range(4)),
        *({"memory_mib": mib} for mib in (1, 4864, 4865, 8000, 20096, 30000)),
        *({"sm_percentage": percent} for percent in (1, 14, 15, 29, 50, 58, 100)),
        *({"sm_count": sms} for sms in (1, 14, 15, 42, 98)),
        *({"memory_percentage": percent} for percent in (1, 12, 13, 25, 26, 50, 51, 100)),
        *({"memory_percentage": percent, "known_geometries": True} for percent in (12, 25, 50, 75)),
        *({"memory_mib": mib, "known_geometries": True} for mib in (1, 5000, 8000, 20000)),
    ]
)
"""Of an instance or a whole GPU."""


@st.composite
def exclusive_claims(draw: st.DrawFn, container: str) -> msg.Claim:
    """Instances or whole GPUs."""
    gpus = draw(st.sampled_from([1, 1, 1, 2, 3, 4]))
    bind = draw(st.booleans()) if gpus > 1 else False
    return msg.Claim(container=container, gpus=gpus, numa_bind=bind, only=draw(FILTERS), **draw(SIZES))


@st.composite
def share_claims(draw: st.DrawFn, container: str) -> msg.Claim:
    """Shares, and lists of modes that end in a share."""
    modes = draw(
        st.sampled_from(
            [
                ("mps",),
                ("mps",),
                ("fractional",),
                ("fractional",),
                ("exclusive", "mps"),
                ("mps", "exclusive"),
                ("fractional", "mps"),
            ]
        )
    )
    values: dict[str, object] = {"memory_mib": draw(st.sampled_from([1, 500, 2048, 4864, 9000, 15360, 30000, 40960]))}
    if "fractional" in modes:
        values["sm_partition"] = draw(st.sampled_from([1, 5, 14, 15, 25, 33, 50, 60, 100]))
        limit = draw(st.sampled_from([100, 500, 1000]))
        values["quota_limit_permille"] = limit
        values["quota_request_permille"] = draw(st.sampled_from([0, 100, limit // 2, limit]))
        if draw(st.booleans()):
            del values["memory_mib"]
    if draw(st.integers(0, 3)) == 0:
        values["memory_percentage"] = draw(st.sampled_from([1, 13, 25, 50, 51, 100]))
        values.pop("memory_mib", None)
    snug = modes[0] == "exclusive" and draw(st.booleans())
    gpus = draw(st.sampled_from([1, 1, 1, 1, 2, 3]))
    uid = draw(st.sampled_from([None, 0, 1000]))
    return msg.Claim(container=container, modes=modes, gpus=gpus, uid=uid, snug=snug, only=draw(FILTERS), **values)


GROUPS = (
    (("main", "second"),),
    (("main", "second", "third"),),
    (("main", "second"), ("third", "second")),
    (("main",),),
)
"""Containers that must share a GPU; one may be missing, and groups with one in common are one."""


@st.composite
def claims_of_one_gpu(draw: st.DrawFn) -> tuple[msg.Claim, ...]:
    """Two or three containers of small instances and shares, of which some must be on one GPU."""
    names = draw(st.sampled_from([("main", "second"), ("main", "second", "third")]))
    claims = []
    for name in names:
        if draw(st.integers(0, 3)) == 0:
            found = replace(draw(share_claims(name)), gpus=1)
        else:
            found = replace(draw(exclusive_claims(name)), gpus=draw(st.sampled_from([1, 1, 1, 2])), numa_bind=False)
        claims.append(found)
    return tuple(claims)


SPLIT_CLAIMS = st.builds(
    lambda percent, only, uid: msg.Claim(
        container="main", modes=("fractional",), shares_percent=percent, only=only, uid=uid
    ),
    st.sampled_from([1, 20, 33, 50, 99, 100, 101, 120, 175, 230, 400]),
    FILTERS,
    st.sampled_from([0, 1000]),
)
"""Amounts over several GPUs."""


EXPRESSIONS = st.sampled_from(
    [
        msg.NodeExpression(key="zone", operator="In", values=("a",)),
        msg.NodeExpression(key="zone", operator="NotIn", values=("a",)),
        msg.NodeExpression(key="rack", operator="Exists"),
        msg.NodeExpression(key="rack", operator="DoesNotExist"),
        msg.NodeExpression(key="rack", operator="Gt", values=("1",)),
    ]
)
DEMANDING = st.builds(
    msg.HostNeeds,
    room=st.builds(
        msg.HostRoom,
        cpu_milli=st.sampled_from([0, 500, 4000]),
        memory_mib=st.sampled_from([0, 2048, 8192]),
        resources=st.sampled_from([{}, {}, {"example.com/nic": 1}]),
    ),
    node_name=st.sampled_from(["", "", "", "node-b"]),
    node_selector=st.sampled_from([{}, {}, {"zone": "a"}]),
    affinity=st.lists(st.lists(EXPRESSIONS, min_size=1, max_size=2).map(tuple), max_size=2).map(tuple),
    tolerations=st.sampled_from(
        [
            (),
            (msg.Toleration(operator="Exists"),),
            (msg.Toleration(key="gpu", operator="Exists", effect="NoSchedule"),),
            (msg.Toleration(key="old", value="yes"),),
        ]
    ),
)
APPS = ({}, {"app": "llm"}, {"app": "llm", "tier": "web"}, {"app": "etl"})
"""The labels of pods."""
SELECTORS = st.sampled_from(
    [
        (),
        (msg.NodeExpression(key="app", operator="In", values=("llm",)),),
        (msg.NodeExpression(key="app", operator="In", values=("llm", "etl")),),
        (msg.NodeExpression(key="tier", operator="Exists"),),
        (
            msg.NodeExpression(key="tier", operator="DoesNotExist"),
            msg.NodeExpression(key="app", operator="In", values=("llm",)),
        ),
        (msg.NodeExpression(key="app", operator="NotIn", values=("llm",)),),
        (msg.NodeExpression(key="app", operator="In"),),
    ]
)
TOPOLOGY_KEYS = st.sampled_from(["kubernetes.io/hostname", "zone", "rack"])
POD_TERMS = st.builds(
    msg.PodTerm,
    topology_key=TOPOLOGY_KEYS,
    selector=SELECTORS,
    namespaces=st.sampled_from([("default",), ("default",), ("other",), ("*",)]),
)
SPREAD_TERMS = st.builds(
    msg.SpreadTerm,
    topology_key=TOPOLOGY_KEYS,
    max_skew=st.sampled_from([1, 1, 2]),
    selector=SELECTORS,
    min_domains=st.sampled_from([1, 1, 2, 5]),
    by_affinity=st.booleans(),
    by_taints=st.booleans(),
)
PORTS = st.builds(
    msg.HostPort,
    port=st.sampled_from([80, 8080]),
    protocol=st.sampled_from(["TCP", "UDP"]),
    ip=st.sampled_from(["", "10.0.0.1", "10.0.0.2"]),
)
ZONE_OF_A_VOLUME = ((msg.NodeExpression(key="zone", operator="In", values=("b",)),),)


@st.composite
def needs_of_others(draw: st.DrawFn, needs: msg.HostNeeds) -> msg.HostNeeds:
    """The same with some terms about other pods, ports, and a volume in a zone."""
    kind = draw(st.sampled_from(["beside", "apart", "apart", "spread", "spread", "ports", "volumes", "all"]))
    found: dict[str, object] = {}
    if kind in {"beside", "all"}:
        found["beside"] = draw(st.lists(POD_TERMS, min_size=1, max_size=2).map(tuple))
    if kind in {"apart", "all"}:
        found["apart"] = draw(st.lists(POD_TERMS, min_size=1, max_size=2).map(tuple))
    if kind in {"spread", "all"}:
        found["spread"] = draw(st.lists(SPREAD_TERMS, min_size=1, max_size=2).map(tuple))
    if kind in {"ports", "all"}:
        found["ports"] = draw(st.lists(PORTS, min_size=1, max_size=2).map(tuple))
    if kind == "volumes":
        found["volumes"] = (ZONE_OF_A_VOLUME,)
    return replace(needs, **found)


def peer(asking: PlaceRequest) -> PeerPod:
    labels = tuple(sorted(asking.labels.items()))
    terms = terms_of(asking.source, asking.namespace, asking.host)
    return PeerPod(asking.source, asking.namespace, labels, asking.host.apart, asking.host.ports, terms=terms)


TOLERANT = msg.HostNeeds(tolerations=(msg.Toleration(operator="Exists"),))
SHARED = [
    *({"modes": ("mps",), "memory_mib": mib, "gpus": gpus} for mib in (400, 3000, 9000) for gpus in (1, 2)),
    *({"modes": ("fractional",), "sm_partition": percent} for percent in (7, 14, 33, 50, 51)),
    *(
        {"modes": ("fractional",), "sm_partition": percent, "memory_mib": 100, "quota_request_permille": permille}
        for percent in (20, 60)
        for permille in (300, 501)
    ),
    *({"modes": ("fractional",), "shares_percent": percent} for percent in (10, 60, 120)),
]
TENANTS = st.sampled_from(SHARED).map(
    lambda shape: PlaceRequest((msg.Claim(container="main", **shape),), host=TOLERANT, source=SourceName("folder"))
)
"""Shares of one trust domain and few sizes, so that homes fill up to the last percent, MiB, turn and tenant."""
PEERS = st.builds(
    PlaceRequest,
    st.just((msg.Claim(container="main", profile="1g.5gb"),)),
    host=needs_of_others(TOLERANT),
    labels=st.sampled_from(APPS),
    source=st.just(SourceName("folder")),
)
"""Small pods, for which only terms about other pods decide."""
NEEDS = st.just(TOLERANT) | st.just(TOLERANT) | st.just(msg.HostNeeds(room=msg.HostRoom(cpu_milli=100))) | DEMANDING
"""What the node must be like; mostly anything."""


@st.composite
def asks(draw: st.DrawFn) -> PlaceRequest:
    kind = draw(st.sampled_from(["exclusive", "exclusive", "share", "share", "split", "two containers", "one GPU"]))
    if kind == "exclusive":
        claims: tuple[msg.Claim, ...] = (draw(exclusive_claims("main")),)
    elif kind == "share":
        claims = (draw(share_claims("main")),)
    elif kind == "split":
        claims = (draw(SPLIT_CLAIMS),)
    elif kind == "one GPU":
        claims = draw(claims_of_one_gpu())
    else:
        claims = (draw(exclusive_claims("main")), draw(exclusive_claims("second") | share_claims("second")))
    needs = draw(NEEDS)
    return PlaceRequest(
        claims,
        namespace=draw(st.sampled_from(["default", "default", "other"])),
        host=draw(needs_of_others(needs)) if draw(st.integers(0, 2)) == 0 else needs,
        labels=draw(st.sampled_from(APPS)),
        source=SourceName("folder"),
        node_policy=draw(st.sampled_from(["", "", *NODE_POLICIES])),
        gpu_policy=draw(st.sampled_from(GPU_CHAINS)),
        by_claim=draw(st.sampled_from([False, False, True])),
        same_gpu=draw(st.sampled_from(GROUPS)) if kind == "one GPU" else (),
    )
