"""What one seed does to the world: its shape, its pods, its faults. Drawn once, before anything runs.

Swarm style: each seed enables some kinds of faults and not others, so that rare combinations are long enough alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Literal

from simulation.faults.further_faults import (
    BURST_SEEDS,
    TROUBLE_SEEDS,
    draw_troubles,
    impossible,
    is_known_to_nobody,
    with_burst,
)
from simulation.faults.journal_losses import draw_losses, draw_lost_beside
from simulation.judges.claims import claiming_in_cluster, with_claims
from simulation.judges.cordons import CordonSaid, with_cordons
from simulation.judges.gpu_tables import A30, A100, A100_WITHOUT_MIG, GpuRow
from simulation.judges.jobs import with_jobs
from simulation.judges.moves import with_moves
from simulation.judges.pods_apart import with_apart
from simulation.judges.pods_per_node import with_limit
from simulation.judges.preemptions import with_preemptions
from simulation.judges.quotas import NO_LIMITS, QuotaSaid, draw_quotas
from simulation.judges.sizes import Resizing, with_resizings
from simulation.kube.plan import draw_claim_faults, draw_handovers, draw_kube_cordons, draw_kube_faults
from simulation.plans.pods import Ask, Pod, Terms, draw_ask, draw_pod, draw_share, shared
from simulation.world.fixed_layouts import FIXED_SEEDS, RELAYS_MEAN, draw_layouts
from simulation.world.hardware import Layout
from simulation.world.limits_file import FAULTS_MAX, FILE_SEEDS
from simulation.world.weather import Weather

FAULTS_UNTIL_S = 40.0
KUBE_CLAIM_SEEDS = 0.5
PODS_UNTIL_S = 30.0
SIZES: tuple[tuple[int, int], ...] = ((8, 2), (12, 2), (18, 3), (24, 3), (40, 5))
"""
How many pods a seed has, and on how many nodes at most. Most of what goes wrong goes wrong in a small world as well, of
which there are several for the price of a large one; in a large one many wait for each other, and for longer."""
SMALL_SIZES = SIZES[:2]
FAULTS_MEAN = 8
CLOSING_TTL_S = 4 * 3600
SHORT_CLOSING_TTL_S = 20

FaultKind = Literal[
    "crash", "pause", "broker restart", "broker wipe", "reboot", "disconnect", "create fails", "in use", "foreign",
    "lease", "journal lost", "daemon dies", "daemon fault", "mps start fails", "gpu lost", "xid", "release",
    "relaid", "node removed", "disk wiped", "disk full", "journal damaged", "identities lost", "mute", "deaf",
    "gpu slow", "replica lags", "clock", "api away", "api busy", "api lags", "watch gap", "watch replays",
    "node object gone", "node cordoned", "tickets lost", "claim deleted", "reservation removed",
]  # fmt: skip
KINDS: tuple[FaultKind, ...] = (
    "crash", "crash", "pause", "broker restart", "broker wipe", "reboot", "disconnect", "create fails", "in use",
    "foreign", "lease", "journal lost",
)  # fmt: skip
SHARING_KINDS: tuple[FaultKind, ...] = (
    "daemon dies", "daemon fault", "mps start fails", "gpu lost", "xid", "release",
)  # fmt: skip
SHARING_FAULTS_MEAN = 4
SHARING_SEEDS = 0.5
"""In so many seeds some pods share, and GPUs and daemons have trouble of their own."""
SHARING_PODS = 0.4
QUOTA_SEEDS = 0.3
"""In so many seeds namespaces have limits."""
QUOTA_OTHERS = 0.3
"""Of the pods there, so many are of another namespace."""
REMOVING_SEEDS = 0.3
"""In so many seeds nodes are removed, and come back."""
REMOVED_S = (14.0, 26.0)
TICKETS_LOST_SEEDS = 0.3
_ONLY_TICKETS_LEFT = frozenset({"journal lost", "journal damaged", "disk wiped"})
"""After these nothing but tickets says whose a slice is: a node that loses them too has lost it."""
KUBELET_SEEDS, LATE_SEEDS = 0.7, 0.35
LATE_PODS = 0.4
"""In so many seeds nodes have kubelets; in so many of all, so many pods open their devices so long after they began."""
OPENS_AFTER_S = (0.3, 6.0)
CLUSTER_SEEDS = 0.1
"""In so many seeds the pods are those of a cluster, and not a folder's."""
BOOK_BATCH, SMALL_BOOK_BATCH, SMALL_BOOK_SEEDS = 200, 15, 0.3
"""In so many seeds an allocator takes in a reading by smaller steps."""
KEEPING_WARM = 0.3
KEEP_WARM_S = 4.0
_Nodes = tuple[tuple[str, tuple[tuple[GpuRow, bool], ...]], ...]


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong. `target` is a host or a node, `number` what the kind makes of it."""

    at: float
    kind: FaultKind
    target: str = ""
    lasts_s: float = 0.0
    number: int = 0

    def __str__(self) -> str:
        return f"{self.at:8.3f}  {self.kind:<15} {self.target:<28} lasts {self.lasts_s:.2f} s, {self.number}"


@dataclass(frozen=True, slots=True)
class PodLife:
    """When a pod is written, edited, half written, and removed (None: not before the faults stop)."""

    pod: Pod
    made_at: float
    edited_at: float | None = None
    edit: Ask | None = None
    spoiled_at: float | None = None
    removed_at: float | None = None

    def coming_at(self, made_at: float, removed_at: float | None) -> "PodLife":
        """The same pod at another time, edited as long after it came as it was. It is not removed before it comes."""
        edited, spoiled = (
            at + made_at - self.made_at if at is not None else None for at in (self.edited_at, self.spoiled_at)
        )
        removed = max(made_at + 0.1, removed_at) if removed_at is not None else None
        return replace(self, made_at=made_at, edited_at=edited, spoiled_at=spoiled, removed_at=removed)


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that one seed decides beforehand."""

    seed: int
    nodes: tuple[tuple[str, tuple[tuple[GpuRow, bool], ...]], ...]
    """Per node its GPUs: the model, and whether MIG mode is on."""
    allocators: int = 1
    both_active: bool = False
    closing_ttl_s: int = CLOSING_TTL_S
    keep_warm_s: float = 0.0
    weather: Weather = field(default_factory=lambda: Weather(FAULTS_UNTIL_S))
    faults: tuple[Fault, ...] = ()
    pods: tuple[PodLife, ...] = ()
    quotas: tuple[QuotaSaid, ...] = ()
    layouts: Mapping[str, Layout] = field(default_factory=dict)
    """The GPUs whose layout an administrator fixed, by UUID."""
    faults_until: float = FAULTS_UNTIL_S
    resizings: tuple[Resizing, ...] = ()
    """When shares are resized."""
    cordons: tuple[CordonSaid, ...] = ()
    limits_file: bool = False
    """The operator writes quotas and cordons into a file, instead of saying them by hand."""
    pods_per_node_max: int | None = None
    """So many pods with slices an operator allows on one node."""
    cluster: bool = False
    """The pods are those of a cluster, and not a folder's."""
    watchers: int = 1
    """Of a cluster's pod-watchers so many, of which one works."""
    clocks_off: bool = False
    """No clock goes as fast as another."""
    timed: tuple[str, ...] = ()
    """The nodes where time is enforced."""
    kubelets: bool = False
    """What runs of a pod is in a cgroup of its own, where its node's agent looks for it."""
    hands_over: tuple[str, ...] = ()
    """The nodes whose kubelets hand devices over by ResourceClaim."""
    book_batch: int = BOOK_BATCH
    """An allocator takes in so many values of a reading with one event."""

    def lines(self) -> list[str]:
        shape = f"{len(self.nodes)} nodes, {self.allocators} allocators{' both active' if self.both_active else ''}"
        kept = f"idle instances kept for {self.keep_warm_s:.0f} s"
        head = f"seed {self.seed}: {shape}, closing words for {self.closing_ttl_s} s, {kept}, {self.weather}"
        head += f", of a cluster with {self.watchers} pod-watchers" if self.cluster else ""
        head += ", its operator has a file" if self.limits_file else ""
        head += ", no two clocks go alike" if self.clocks_off else ""
        head += ", its pods have cgroups" if self.kubelets else ""
        head += f", {', '.join(self.hands_over)} hand over" if self.hands_over else ""
        head += f", time is enforced on {', '.join(self.timed)}" if self.timed else ""
        head += f", readings taken in by {self.book_batch}" if self.book_batch < BOOK_BATCH else ""
        head += f", at most {self.pods_per_node_max} pods per node" if self.pods_per_node_max is not None else ""
        pods = [
            f"{life.made_at:8.3f}  {life.pod.namespace}/{life.pod.name} of {life.pod.uid}:"
            f" {dict(life.pod.ask.annotations)}{_terms(life.pod)}{_claims(life.pod)}, edited {life.edited_at}"
            f" {dict(life.edit.annotations) if life.edit else ''}, spoiled {life.spoiled_at}, removed {life.removed_at}"
            for life in self.pods
        ]
        quotas = [f"{said.at:8.3f}  {said.message}" for said in (*self.quotas, *self.cordons)]
        head += "".join(f"\n{gpu} is fixed: {layout}" for gpu, layout in self.layouts.items())
        sizes = [f"{each.at:8.3f}  {each}" for each in self.resizings]
        return [head, *(str(fault) for fault in self.faults), *quotas, *pods, *sizes]


def _terms(pod: Pod) -> str:
    return f" {pod.terms}" if pod.terms != Terms() else ""


def _claims(pod: Pod) -> str:
    told = f" or {' or '.join(pod.alternatives)}" if pod.alternatives else ""
    return f"{told}{' by claim' if pod.by_claim else ''}{' on one GPU' if pod.one_gpu else ''}"


def draw_plan(seed: int, without: Sequence[str] = (), sizes: Sequence[tuple[int, int]] = SIZES) -> Plan:
    """The plan of a seed; `without` leaves kinds of faults out, to look for a violation's reason. `sizes` as in SIZES.

    It also knows "cluster" (all pods are a folder's then) and "lost together" (no journal is lost together with the
    ledger, nor beside a wiped broker, an idle instance, or one that was made by hand).
    """
    dice = Random(f"plan {seed}")
    size = Random(f"size {seed}")
    count_of_pods, nodes_max = size.choice(sizes)
    nodes = _some_of(_draw_nodes(dice), nodes_max, size)
    short = dice.random() < 0.25
    allocators = 2 if dice.random() < 0.6 else 1
    kinds = [kind for kind in KINDS if dice.random() < 0.5]
    if short and "pause" in kinds:
        kinds = [kind for kind in kinds if kind != "pause"]  # closing messages stay longer than any pause
    if "broker wipe" in kinds or "foreign" in kinds:
        kinds = [kind for kind in kinds if kind != "journal lost"]  # drawn apart, in `losses`
    kinds = [kind for kind in kinds if kind not in without]
    plan = Plan(
        seed=seed,
        nodes=nodes,
        allocators=allocators,
        both_active=allocators == 2 and dice.random() < 0.85,
        closing_ttl_s=SHORT_CLOSING_TTL_S if short else CLOSING_TTL_S,
        weather=_draw_weather(dice, short=short),
        pods=tuple(_draw_life(number, dice) for number in range(count_of_pods)),
        book_batch=SMALL_BOOK_BATCH if Random(f"readings {seed}").random() < SMALL_BOOK_SEEDS else BOOK_BATCH,
    )
    hosts = ["pod-watcher", "inventory", "allocator-a", *(f"agent-{node}" for node, _ in nodes)]
    hosts += ["allocator-b"] if allocators == 2 else []
    count = min(20, round(dice.gammavariate(3, FAULTS_MEAN / 3))) if kinds else 0
    faults = [_draw_fault(dice, dice.choice(kinds), hosts, [node for node, _ in nodes]) for _ in range(count)]
    faults.sort(key=lambda fault: fault.at)
    plan = _with_quotas(_with_sharing(replace(plan, faults=tuple(faults)), without))
    plan = with_resizings(with_preemptions(_with_layouts(with_moves(with_jobs(plan)))))
    plan = _with_limits_file(with_cordons(with_limit(_with_removals(plan, without))), without)
    plan = _with_losses(_with_burst(_with_troubles(plan, hosts, without)), without)
    plan = with_apart(_with_kubelets(plan))
    in_cluster = Random(f"of a cluster {seed}").random() < CLUSTER_SEEDS and "cluster" not in without
    return with_cluster(plan, without) if in_cluster else with_claims(plan)


def with_kube_claims(plan: Plan, without: Sequence[str] = (), seeds: float = KUBE_CLAIM_SEEDS) -> Plan:
    """In some seeds of a cluster some pods have the claim that admission adds, and faults disturb claims."""
    dice = Random(f"claims of a cluster {plan.seed}")
    if dice.random() >= seeds or not plan.cluster or plan.hands_over:
        return plan
    hands_over, pods = claiming_in_cluster([node for node, _ in plan.nodes], plan.pods, dice)
    rows = draw_claim_faults(dice, plan.faults_until, without)
    more = [Fault(row.at, row.kind, row.target, row.lasts_s, row.number) for row in rows]
    faults = tuple(sorted((*plan.faults, *more), key=lambda fault: fault.at))
    return replace(plan, hands_over=hands_over, pods=pods, faults=faults)


def _with_kubelets(plan: Plan) -> Plan:
    """In most seeds pods have cgroups, and in half of those some open their devices late, or tickets are lost."""
    roll = Random(f"kubelets {plan.seed}").random()
    if roll >= KUBELET_SEEDS:
        return plan
    plan = with_late_openers(plan) if roll < LATE_SEEDS else replace(plan, kubelets=True)
    dice = Random(f"tickets lost {plan.seed}")
    if dice.random() >= TICKETS_LOST_SEEDS or any(fault.kind in _ONLY_TICKETS_LEFT for fault in plan.faults):
        return plan
    lost = [Fault(dice.uniform(3.0, plan.faults_until), "tickets lost", dice.choice(plan.nodes)[0]) for _ in range(2)]
    return replace(plan, faults=tuple(sorted((*plan.faults, *lost), key=lambda fault: fault.at)))


def with_late_openers(plan: Plan) -> Plan:
    """The same plan, where some pods compute something else before they open their devices."""
    dice = Random(f"late openers {plan.seed}")
    pods = tuple(
        replace(life, pod=replace(life.pod, opens_after_s=dice.uniform(*OPENS_AFTER_S)))
        if dice.random() < LATE_PODS
        else life
        for life in plan.pods
    )
    return replace(plan, pods=pods, kubelets=True)


def _with_troubles(plan: Plan, hosts: Sequence[str], without: Sequence[str]) -> Plan:
    """In some seeds there are further faults, drawn apart, so that all else of a seed stays what it is without."""
    dice = Random(f"troubles {plan.seed}")
    if dice.random() >= TROUBLE_SEEDS:
        return plan
    rows = draw_troubles(dice, hosts, [node for node, _ in plan.nodes], plan.faults_until, but=without)
    struck = {fault.kind for fault in plan.faults}
    restarts = [fault for fault in plan.faults if fault.kind == "broker restart" and fault.number]
    never = impossible(struck, forgetful=bool(restarts))
    never |= {"journal damaged"} if plan.keep_warm_s else set()  # an instance without tenant has an unknown owner
    rows = [row for row in rows if row.kind not in never and not is_known_to_nobody(row, restarts)]
    more = [Fault(row.at, row.kind, row.target, row.lasts_s, row.number) for row in rows]
    faults = tuple(sorted((*plan.faults, *more), key=lambda fault: fault.at))
    return replace(plan, faults=faults, clocks_off=dice.random() < 0.5)


def _with_losses(plan: Plan, without: Sequence[str]) -> Plan:
    """In some seeds journals are lost, too: together with the ledger, or beside what makes it hard to find out."""
    if "lost together" in without:
        return plan
    struck, nodes = {fault.kind for fault in plan.faults}, [node for node, _ in plan.nodes]
    rows = draw_losses(plan.seed, nodes, struck, plan.faults_until)
    if not rows:
        rows = draw_lost_beside(plan.seed, nodes, struck, plan.faults_until, warm=bool(plan.keep_warm_s))
    more = [Fault(*row) for row in rows]
    return replace(plan, faults=tuple(sorted((*plan.faults, *more), key=lambda fault: fault.at)))


def with_cluster(plan: Plan, without: Sequence[str] = ()) -> Plan:
    """The same plan with the pods of a cluster instead of a folder's, and with what goes wrong at its API server."""
    if plan.cluster:
        return plan
    dice = Random(f"cluster faults {plan.seed}")
    nodes = [node for node, _ in plan.nodes]
    rows = draw_kube_faults(dice, nodes, plan.faults_until, but=without)
    rows += draw_kube_cordons(Random(f"kubectl cordon {plan.seed}"), nodes, plan.faults_until, without)
    more = [Fault(row.at, row.kind, row.target, row.lasts_s, row.number) for row in rows]
    handed_over = draw_handovers(Random(f"pod-watchers {plan.seed}"), plan.faults_until, without)
    more += [Fault(at, kind, target, lasts_s) for at, kind, target, lasts_s in handed_over]
    faults = tuple(sorted((*plan.faults, *more), key=lambda fault: fault.at))
    # What a folder's pods ask for by claims, its admission adds: a cluster's asks as its pods do.
    plain = {"by_claim": False, "alternatives": (), "one_gpu": False, "shares_claim": False}
    pods = tuple(replace(life, pod=replace(life.pod, **plain)) for life in plan.pods)  # type: ignore[arg-type]
    plan = replace(plan, pods=pods, hands_over=(), cluster=True, watchers=2 if handed_over else 1, faults=faults)
    return with_kube_claims(plan, without)


def _with_burst(plan: Plan) -> Plan:
    dice = Random(f"burst {plan.seed}")
    if dice.random() >= BURST_SEEDS:
        return plan
    return replace(plan, pods=with_burst(plan.pods, dice, PODS_UNTIL_S))


def _with_removals(plan: Plan, without: Sequence[str]) -> Plan:
    """In some seeds a node or two are removed: drawn apart, so that all else of a seed stays what it is without."""
    dice = Random(f"removals {plan.seed}")
    journals_lost = any(fault.kind == "journal lost" for fault in plan.faults)  # the owner of a slice is unknown then
    if dice.random() >= REMOVING_SEEDS or journals_lost or "node removed" in without:
        return plan
    return removing(plan, dice, dice.choice((1, 1, 2)))


def removing(plan: Plan, dice: Random, count: int) -> Plan:
    """The same plan with so many nodes removed, early enough for their grants to be closed before the faults stop."""
    more = [
        Fault(
            at=dice.uniform(3.0, 18.0),
            kind="node removed",
            target=dice.choice(plan.nodes)[0],
            lasts_s=dice.uniform(*REMOVED_S),
            number=dice.randrange(3),
        )
        for _ in range(count)
    ]
    return replace(plan, faults=tuple(sorted((*plan.faults, *more), key=lambda fault: fault.at)))


def _with_sharing(plan: Plan, without: Sequence[str]) -> Plan:
    """Some seeds also share: drawn apart, so that all else of a seed stays what it is without."""
    dice = Random(f"sharing {plan.seed}")
    keep_warm_s = KEEP_WARM_S if dice.random() < KEEPING_WARM else 0.0
    if any(fault.kind == "journal lost" for fault in plan.faults):
        keep_warm_s = 0.0  # both are drawn apart, in `losses`
    if dice.random() >= SHARING_SEEDS:
        return replace(plan, keep_warm_s=keep_warm_s)
    kinds = [kind for kind in SHARING_KINDS if dice.random() < 0.5]
    count = min(10, round(dice.gammavariate(3, SHARING_FAULTS_MEAN / 3))) if kinds else 0
    nodes = [node for node, _ in plan.nodes]
    more = [_draw_fault(dice, dice.choice(kinds), [], nodes) for _ in range(count)]
    faults = (*plan.faults, *(fault for fault in more if fault.kind not in without))
    pods = tuple(_sharing(life, dice) if dice.random() < SHARING_PODS else life for life in plan.pods)
    ordered = tuple(sorted(faults, key=lambda fault: fault.at))
    return replace(plan, keep_warm_s=keep_warm_s, faults=ordered, pods=pods)


def _with_quotas(plan: Plan) -> Plan:
    """In some seeds namespaces have limits, which change; all else stays what it is without, but for some pods."""
    dice = Random(f"quotas {plan.seed}")
    if dice.random() >= QUOTA_SEEDS:
        return plan
    pods = tuple(
        replace(life, pod=replace(life.pod, namespace="den")) if dice.random() < QUOTA_OTHERS else life
        for life in plan.pods
    )
    return replace(plan, quotas=draw_quotas(dice), pods=pods)


def _with_limits_file(plan: Plan, without: Sequence[str]) -> Plan:
    """
    In some seeds what an operator says is in a file: drawn apart, so that all else of a seed stays what it is without.

    Not where a namespace has a guarantee: its judge takes it to be known from the beginning.
    """
    dice = Random(f"limits file {plan.seed}")
    guaranteed = any(said.guaranteed != NO_LIMITS for said in plan.quotas)
    if dice.random() >= FILE_SEEDS or guaranteed or not (plan.quotas or plan.cordons):
        return plan
    kinds: list[FaultKind] = [kind for kind in ("crash", "pause", "disconnect") if kind not in without]
    count = dice.randrange(FAULTS_MAX + 1) if kinds else 0
    more = [_draw_fault(dice, dice.choice(kinds), ["limits"], []) for _ in range(count)]
    faults = tuple(sorted((*plan.faults, *more), key=lambda fault: fault.at))
    return replace(plan, limits_file=True, faults=faults)


def _with_layouts(plan: Plan) -> Plan:
    """In some seeds some GPUs are an administrator's. Not with jobs and quotas, whose judges know other GPUs only."""
    dice = Random(f"layouts {plan.seed}")
    jobs = any("group" in key for life in plan.pods for key, _ in life.pod.ask.annotations)
    if dice.random() >= FIXED_SEEDS or jobs or plan.quotas:
        return plan
    layouts = draw_layouts(dice, plan.nodes)
    nodes = [node for node, _ in plan.nodes]
    more = [_draw_fault(dice, "relaid", [], nodes) for _ in range(round(dice.gammavariate(2, RELAYS_MEAN / 2)))]
    faults = tuple(sorted((*plan.faults, *more), key=lambda fault: fault.at))
    return replace(plan, layouts=layouts, faults=faults)


def _sharing(life: PodLife, dice: Random) -> PodLife:
    """The same pod with a share; an edit of it is one of shares in half of the cases."""
    edit = draw_share(dice) if life.edit is not None and dice.random() < 0.5 else life.edit
    return replace(life, pod=shared(life.pod, dice), edit=edit)


def _some_of(nodes: _Nodes, most: int, dice: Random) -> _Nodes:
    others = nodes[1:]
    kept = sorted(dice.sample(range(len(others)), min(most - 1, len(others))))
    return (nodes[0], *(others[number] for number in kept))


def _draw_nodes(dice: Random) -> _Nodes:
    names = ["gpu-1.example.internal", "node-b", "node-c", "node-d", "node-e"][: dice.choice((4, 4, 4, 5))]
    nodes = []
    for number, name in enumerate(names):
        if number == 3:
            gpus = ((A100_WITHOUT_MIG, False),) * dice.choice((1, 2))
        else:
            gpus = tuple((A30 if dice.random() < 0.25 else A100, True) for _ in range(dice.choice((1, 2))))
        nodes.append((name, gpus))
    return tuple(nodes)


def _draw_weather(dice: Random, *, short: bool) -> Weather:
    def sometimes(most: float) -> float:
        return most * dice.random() if dice.random() < 0.5 else 0.0

    return Weather(
        until=FAULTS_UNTIL_S,
        ack_lost=sometimes(0.05),
        request_lost=sometimes(0.05),
        late=sometimes(0.05),
        twice=sometimes(0.08),
        stall=sometimes(0.08),
        redelivered=sometimes(0.15),
        pull_failed=sometimes(0.2),
        slow_device=sometimes(0.1),
        hasty_end=sometimes(0.01),
        longest_s=3.0 if short else 6.0,
    )


def _draw_life(number: int, dice: Random) -> PodLife:
    pod = draw_pod(number, dice)
    made = dice.uniform(0.2, PODS_UNTIL_S) if dice.random() < 0.8 else dice.uniform(0.2, 2.0)
    removed = made + dice.expovariate(1 / 9) if dice.random() < 0.6 else None
    edited = made + dice.expovariate(1 / 2) if dice.random() < 0.12 else None
    spoiled = made + dice.expovariate(1 / 6) if dice.random() < 0.12 else None
    return PodLife(pod, made, edited, draw_ask(dice) if edited is not None else None, spoiled, removed)


def _draw_fault(dice: Random, kind: FaultKind, hosts: list[str], nodes: list[str]) -> Fault:
    at = dice.uniform(1.0, FAULTS_UNTIL_S - 2.0)
    lasts = 0.1 + dice.expovariate(1 / 3)
    match kind:
        case "crash" | "pause" | "disconnect":
            return Fault(at, kind, dice.choice(hosts), min(lasts, 12.0))
        case "daemon dies" | "daemon fault" | "gpu lost" | "xid" | "release" | "relaid":
            return Fault(at, kind, dice.choice(nodes), min(lasts, 8.0))
        case "reboot" | "journal lost":
            return Fault(at, kind, dice.choice(nodes), min(lasts, 12.0), dice.randrange(2))
        case "create fails" | "in use" | "foreign" | "mps start fails":
            return Fault(at, kind, dice.choice(nodes), min(lasts * 3, 20.0), dice.randrange(1, 5))
        case "broker restart":
            return Fault(at, kind, "", min(lasts, 5.0), dice.choice((0, 0, 1, 3, 10)))
        case _:
            return Fault(at, kind, "", min(lasts, 8.0), dice.randrange(2))
