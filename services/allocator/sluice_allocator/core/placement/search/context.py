"""The context of one search: the request prepared once, and the classes of nodes that may serve it."""

import msgspec

from sluice.contracts.ids import NodeName
from sluice.contracts.kube.selectors import volumes_reachable
from sluice.contracts.messages import DeviceGrant, HostRoom
from sluice.contracts.reasons import ReasonCount, WaitReason
from sluice_allocator.core.placement.affinity.pod_filters import PodFilter, pod_filters_for
from sluice_allocator.core.placement.cluster.cluster_state import ClusterState
from sluice_allocator.core.placement.index.node_class import NodeClass
from sluice_allocator.core.placement.nodes.device_spec import DeviceSpec
from sluice_allocator.core.placement.nodes.gpu import Gpu
from sluice_allocator.core.placement.nodes.node import ANY_CPU_PER_GPU, Node, cpu_per_gpu_of
from sluice_allocator.core.placement.nodes.same_gpu import together_of
from sluice_allocator.core.placement.spec.place_request import PASSING, Avoid, PlaceRequest, selects
from sluice_allocator.core.placement.spec.policies import Policy, policy_for

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
        anywhere = not (
            host.node_selector or host.affinity or host.volumes or self.pod_filters or self.request.by_claim
        )
        return [
            group
            for group in self.cluster.index.classes.values()
            if group.nodes
            and ((anywhere and not group.taints) or (self.why_not(group) is None and self.kept_out(group) is None))
        ]

    def why_not(self, group: NodeClass) -> WaitReason | None:
        """Why no node of a class may serve it; None when some may."""
        if not self.one_by_one and not selects(self.request.host, group.labels):
            return WaitReason.NODE_SELECTOR_MISMATCH
        if (
            self.request.host.volumes
            and not self.one_by_one
            and not volumes_reachable(self.request.host.volumes, group.labels)
        ):
            return WaitReason.NODE_VOLUME_ELSEWHERE
        if self.request.by_claim and not group.hands_over:
            return WaitReason.NODE_WITHOUT_HAND_OVER
        return group.why_not(self.request.host)

    def kept_out(self, group: NodeClass) -> WaitReason | None:
        """Why other pods keep it off every node of a class now; None when they do not."""
        if not self.pod_filters:
            return None
        told = (pod_filter for pod_filter in self.pod_filters if self.cluster.index.tells_apart(pod_filter.key))
        return next(
            (why for pod_filter in told if (why := pod_filter.why_not(group.labels.get(pod_filter.key))) is not None),
            None,
        )

    def admits(self, node: Node) -> bool:
        """Whether a node of such a class may serve it, room aside."""
        return not (self.one_by_one or self.picky) or self.why_not_on(node) is None

    def why_not_on(self, node: Node) -> WaitReason | None:
        """Why this node of such a class may not serve it, room aside; None when it may."""
        host = self.request.host
        if host.shun and node.name in host.shun:
            return WaitReason.GPU_AVOIDED
        if self.one_by_one and not selects(host, node.labels):
            return WaitReason.NODE_SELECTOR_MISMATCH
        if self.one_by_one and not volumes_reachable(host.volumes, node.labels):
            return WaitReason.NODE_VOLUME_ELSEWHERE
        for pod_filter in self.pod_filters:
            why = pod_filter.why_not(node.labels.get(pod_filter.key))
            if why is not None:
                return why
        if host.ports and self.cluster.peers.is_taken(node.name, host.ports):
            return WaitReason.NODE_HOST_PORT_TAKEN
        return None

    def may_use(self, gpu: Gpu, spec: DeviceSpec) -> bool:
        """Whether this GPU may serve a claim, whatever is booked on it."""
        if self.avoid and gpu.report.uuid in self.avoid:
            return False
        return not spec.picky or not spec.excludes(gpu)

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
    if request.steps:
        claims = zip(request.claims, request.steps, strict=True)
        context.specs = [cluster.specs.of(claim, request.namespace, step) for claim, step in claims]
    else:
        context.specs = [cluster.specs.of(claim, request.namespace) for claim in request.claims]
    if request.same_gpu:
        context.together = together_of(request)
    context.one_by_one = cluster.index.group_by_labels(request.host)
    if cluster.peers.tells_apart(request):
        context.pod_filters = pod_filters_for(cluster.peers, request)
        for pod_filter in context.pod_filters:
            cluster.index.group_by_topology(pod_filter.key)
    context.picky = bool(context.pod_filters or request.host.ports or request.host.shun)
    return context
