"""The context of one search: the request prepared once, and the classes of nodes that may serve it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import repeat

import msgspec

from sluice.contracts.ids import NodeName
from sluice.contracts.kube.selectors import volumes_reachable
from sluice.contracts.messages import Claim, DeviceGrant, HostRoom, Share
from sluice.contracts.reasons import ReasonCount, WaitReason
from sluice.mig.transition_table import State, TransitionTable
from sluice_allocator.core.placement.affinity.pod_filters import PodFilter, pod_filters_for
from sluice_allocator.core.placement.cluster.cluster_state import ClusterState
from sluice_allocator.core.placement.index.node_class import NodeClass
from sluice_allocator.core.placement.nodes.device_spec import DeviceSpec, WholeGpu
from sluice_allocator.core.placement.nodes.gpu import Gpu
from sluice_allocator.core.placement.nodes.node import ANY_CPU_PER_GPU, Node, cpu_per_gpu_of
from sluice_allocator.core.placement.nodes.shared_device import SharedDevice
from sluice_allocator.core.placement.spec.place_request import PASSING, Avoid, PlaceRequest, selects
from sluice_allocator.core.placement.spec.policies import DeviceUse, Policy, policy_for

_REMEMBERED_MAX = 1 << 16


def together_of(request: PlaceRequest) -> dict[int, tuple[int, ...]]:
    """By claim that is bound to others: all claims of its group. Groups that share a container are one."""
    groups: list[set[str]] = []
    for names in request.same_gpu:
        joined = set(names).union(*(group for group in groups if group & set(names)))
        groups = [group for group in groups if not group & joined] + [joined]
    found: dict[int, tuple[int, ...]] = {}
    for group in groups:
        members = tuple(number for number, claim in enumerate(request.claims) if claim.container in group)
        if sum(request.claims[number].gpus for number in members) > 1:
            found |= dict.fromkeys(members, members)
    return found


def groups_in(together: Mapping[int, tuple[int, ...]]) -> list[tuple[int, ...]]:
    return list(dict.fromkeys(together.values()))


def is_exclusive(claim: Claim) -> bool:
    return claim.modes == ("exclusive",)


def instances_fit(gpu: Gpu, state: State, specs: Sequence[tuple[DeviceSpec, int]]) -> bool:
    """Whether so many devices of these claims of a group fit on a GPU in this state, beside each other. Only the claims
    that are never shares count. False where one of them would be all of a GPU without MIG."""
    names: Counter[str] = Counter()
    for spec, count in specs:
        if count and is_exclusive(spec.claim):
            shape = spec.shape_on(gpu)
            if isinstance(shape, (WaitReason, WholeGpu)):
                return False
            names[shape.name] += count
    return _fit(gpu.table, state, tuple(sorted(names.elements())))


@lru_cache(maxsize=_REMEMBERED_MAX)
def _fit(table: TransitionTable, state: State, profiles: tuple[str, ...]) -> bool:
    if not profiles:
        return True
    if any(table.count(state, name) < count for name, count in Counter(profiles).items()):
        return False
    known = {name: profile for name in profiles if (profile := table.model.profile(name)) is not None}
    largest = max(profiles, key=lambda name: (known[name].memory_slices if name in known else 0, name))
    rest = list(profiles)
    rest.remove(largest)
    return any(_fit(table, choice.state_after, tuple(rest)) for choice in table.choices(state, largest))


PASSES = PASSING | {WaitReason.NODE_WITHOUT_HAND_OVER}  # keeps a request off a class of nodes now, and maybe only now


class Place(msgspec.Struct, frozen=True):
    """The node and the devices found for all claims of a request."""

    node: NodeName
    devices: tuple[DeviceGrant, ...]
    instead_of: str = ""  # the requested profiles, where larger ones serve


class NoPlace(msgspec.Struct, frozen=True):
    """Why nothing fits now: one sentence, and every reason counted per class of nodes and of GPUs."""

    message: str
    reasons: tuple[ReasonCount, ...]
    more: int = 0  # number of reasons left out, those counted least


class SearchContext(msgspec.Struct, eq=False):
    """A request and the cluster it is searched in."""

    cluster: ClusterState
    request: PlaceRequest
    avoid: Avoid
    need: HostRoom
    specs: list[DeviceSpec] = msgspec.field(default_factory=list)  # one for each claim
    one_by_one: bool = False  # whether labels are checked on each node: they tell no classes apart
    pod_filters: tuple[PodFilter, ...] = ()  # filters from other pods' terms
    together: dict[int, tuple[int, ...]] = msgspec.field(default_factory=dict)  # claims on one GPU, by any of them
    picky: bool = False  # whether pods or ports are checked on each node
    steps: int = 0  # devices placed on trial so far, over all nodes

    def groups(self) -> list[NodeClass]:
        host = self.request.host
        selects_some = host.node_selector or host.affinity or host.volumes or self.pod_filters or self.request.by_claim

        def may_serve(group: NodeClass) -> bool:
            return self.why_not(group) is None and self.kept_out(group) is None

        used = [group for group in self.cluster.index.classes.values() if group.nodes]
        return [each for each in used if not (selects_some or each.taints) or may_serve(each)]

    def why_not(self, group: NodeClass) -> WaitReason | None:
        """Why no node of a class may serve it; None when some may."""
        reason = self._why_not_with(group.labels) if not self.one_by_one else None
        if reason is None and self.request.by_claim and not group.hands_over:
            return WaitReason.NODE_WITHOUT_HAND_OVER
        return reason or group.why_not(self.request.host)

    def _why_not_with(self, labels: Mapping[str, str]) -> WaitReason | None:
        host = self.request.host
        if not selects(host, labels):
            return WaitReason.NODE_SELECTOR_MISMATCH
        is_far = bool(host.volumes) and not volumes_reachable(host.volumes, labels)
        return WaitReason.NODE_VOLUME_ELSEWHERE if is_far else None

    def kept_out(self, group: NodeClass) -> WaitReason | None:
        for each in self.pod_filters:
            why = each.why_not(group.labels.get(each.key)) if self.cluster.index.tells_apart(each.key) else None
            if why is not None:
                return why
        return None

    def admits(self, node: Node) -> bool:
        """Whether a node of such a class may serve it, room aside."""
        return not (self.one_by_one or self.picky) or self.why_not_on(node) is None

    def why_not_on(self, node: Node) -> WaitReason | None:
        """Why this node of such a class may not serve it, room aside; None when it may."""
        host = self.request.host
        if host.shun and node.name in host.shun:
            return WaitReason.GPU_AVOIDED
        if self.one_by_one and (why := self._why_not_with(node.labels)) is not None:
            return why
        for pod_filter in self.pod_filters:
            why = pod_filter.why_not(node.labels.get(pod_filter.key))
            if why is not None:
                return why
        is_taken = bool(host.ports) and self.cluster.peers.is_taken(node.name, host.ports)
        return WaitReason.NODE_HOST_PORT_TAKEN if is_taken else None

    def may_be_on(self, node: Node) -> bool:
        """Whether this very node may serve it, room aside."""
        is_named = self.request.host.node_name in {"", node.name}
        is_open = bool(node.gpus) and is_named and self.admits(node)
        return is_open and self.why_not(self.cluster.index.class_of(node)) is None

    def may_use(self, gpu: Gpu, spec: DeviceSpec) -> bool:
        is_avoided = self.avoid and gpu.report.uuid in self.avoid
        return not is_avoided and not (spec.picky and spec.excludes(gpu))

    def cpu_per_gpu(self, gpu_percent: int) -> int:
        """The pod's CPU per GPU, as nodes are compared by it; ANY_CPU_PER_GPU when it requests no CPU."""
        if self.need.cpu_milli <= 0:
            return ANY_CPU_PER_GPU
        self.cluster.index.keep_cpu_per_gpu()
        return cpu_per_gpu_of(self.need.cpu_milli, gpu_percent)

    def policy(self, group: NodeClass) -> Policy:
        policy = policy_for(self.request.node_policy, self.request.gpu_policy, group.pool)
        if policy.nodes in {"fullest", "emptiest"}:
            self.cluster.index.weigh_all()
        return policy


def prepare(cluster: ClusterState, request: PlaceRequest, avoid: Avoid) -> SearchContext:
    context = SearchContext(cluster, request, avoid, request.host.room)
    steps = zip(request.claims, request.steps or repeat(0), strict=False)
    context.specs = [cluster.specs.of(claim, request.namespace, step) for claim, step in steps]
    if request.same_gpu:
        context.together = together_of(request)
    context.one_by_one = cluster.index.group_by_labels(request.host)
    if cluster.peers.tells_apart(request):
        context.pod_filters = pod_filters_for(cluster.peers, request)
        for pod_filter in context.pod_filters:
            cluster.index.group_by_topology(pod_filter.key)
    context.picky = bool(context.pod_filters or request.host.ports or request.host.shun)
    return context


def whole_use(gpu: Gpu) -> DeviceUse:
    return DeviceUse(0, gpu.model.memory_slices, (), gpu.report.numa_node, gpu.report.index)


def home_use(gpu: Gpu, home: SharedDevice, rank: int) -> DeviceUse:
    return DeviceUse(1000 - 10 * home.level, 0, (rank,), gpu.report.numa_node, gpu.report.index)


def percent_of(gpu: Gpu, share: Share) -> int:
    return share.sm_partition or max(1, 100 * share.memory_mib // max(1, gpu.memory_mib))


def cpu_ratio_distance(policy: Policy, node: Node, cpu_per_gpu: int) -> int:
    known = node.facts is not None and cpu_per_gpu != ANY_CPU_PER_GPU
    return abs(node.cpu_per_gpu - cpu_per_gpu) if policy.nodes == "any" and known else 0


def node_key(policy: Policy, node: Node) -> tuple[int, ...]:
    """The part of a policy's key that orders nodes before devices; () where devices decide."""
    if policy.nodes in {"fullest", "emptiest"}:
        return -node.usage if policy.nodes == "fullest" else node.usage, node.number
    return (node.number,) if policy.nodes == "first" else ()


def tail(cpu_per_gpu: int, node: Node, gpu: Gpu) -> tuple[int, ...]:
    """The tie-breaker: the node nearest in CPU per GPU, the poorer, the one known first, its first GPU."""
    if node.facts is None or cpu_per_gpu == ANY_CPU_PER_GPU:
        return 0, 0, node.number, gpu.report.index
    return abs(node.cpu_per_gpu - cpu_per_gpu), node.cpu_per_gpu, node.number, gpu.report.index
