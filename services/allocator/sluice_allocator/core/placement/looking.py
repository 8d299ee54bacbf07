"""The context of one search: the request prepared once, and the classes of nodes that may serve it."""

import msgspec

from sluice.contracts.ids import NodeName
from sluice.contracts.kube.selectors import volumes_reachable
from sluice.contracts.messages import DeviceGrant, HostRoom
from sluice.contracts.reasons import ReasonCount, WaitReason
from sluice_allocator.core.placement.asking import Asking, Avoid
from sluice_allocator.core.placement.classes import NodeClass, selects
from sluice_allocator.core.placement.fleet import Fleet
from sluice_allocator.core.placement.gpus import Gpu
from sluice_allocator.core.placement.hosts import NO_WEALTH, Node, wealth_of
from sluice_allocator.core.placement.pod_terms import Bar, bars_for
from sluice_allocator.core.placement.policies import Policy, policy_for
from sluice_allocator.core.placement.same_gpu import together_of
from sluice_allocator.core.placement.taints import PASSING
from sluice_allocator.core.placement.wants import Want

PASSES = PASSING | {WaitReason.NODE_WITHOUT_HAND_OVER}
"""What keeps a request off a class of nodes now, and says nothing about whether they could ever serve it."""


class Place(msgspec.Struct, frozen=True):
    """The node and the devices found for all claims of a request."""

    node: NodeName
    devices: tuple[DeviceGrant, ...]
    instead_of: str = ""
    """The requested profiles, where larger ones serve."""


class NoPlace(msgspec.Struct, frozen=True):
    """Why nothing fits now: one sentence, and every reason counted per class of nodes and of GPUs."""

    message: str
    reasons: tuple[ReasonCount, ...]
    more: int = 0
    """Number of reasons left out, those counted least."""


class Look(msgspec.Struct, eq=False):
    """A request and the fleet it is searched in."""

    fleet: Fleet
    asking: Asking
    avoid: Avoid
    need: HostRoom
    wants: list[Want] = msgspec.field(default_factory=list)
    """One for each claim."""
    one_by_one: bool = False
    """Whether labels are checked on each node: the pod selects by labels that tell no classes apart."""
    bars: tuple[Bar, ...] = ()
    """Filters from other pods' terms."""
    together: dict[int, tuple[int, ...]] = msgspec.field(default_factory=dict)
    """By number of a claim whose devices must be on one GPU with others': the numbers of all those claims."""
    picky: bool = False
    """Whether pods or ports are checked on each node."""
    steps: int = 0
    """Devices placed on trial so far, over all nodes."""

    def groups(self) -> list[NodeClass]:
        """The classes of nodes that may serve it."""
        host = self.asking.host
        anywhere = not (host.node_selector or host.affinity or host.volumes or self.bars or self.asking.by_claim)
        return [
            group
            for group in self.fleet.stock.classes.values()
            if group.nodes
            and ((anywhere and not group.taints) or (self.why_not(group) is None and self.kept_out(group) is None))
        ]

    def why_not(self, group: NodeClass) -> WaitReason | None:
        """Why no node of a class may serve it; None when some may."""
        if not self.one_by_one and not selects(self.asking.host, group.labels):
            return WaitReason.NODE_SELECTOR_MISMATCH
        if (
            self.asking.host.volumes
            and not self.one_by_one
            and not volumes_reachable(self.asking.host.volumes, group.labels)
        ):
            return WaitReason.NODE_VOLUME_ELSEWHERE
        if self.asking.by_claim and not group.hands_over:
            return WaitReason.NODE_WITHOUT_HAND_OVER
        return group.why_not(self.asking.host)

    def kept_out(self, group: NodeClass) -> WaitReason | None:
        """Why other pods keep it off every node of a class now; None when they do not."""
        if not self.bars:
            return None
        told = (bar for bar in self.bars if self.fleet.stock.tells_apart(bar.key))
        return next((why for bar in told if (why := bar.why_not(group.labels.get(bar.key))) is not None), None)

    def admits(self, node: Node) -> bool:
        """Whether a node of such a class may serve it, room aside."""
        return not (self.one_by_one or self.picky) or self.why_not_on(node) is None

    def why_not_on(self, node: Node) -> WaitReason | None:
        """Why this node of such a class may not serve it, room aside; None when it may."""
        host = self.asking.host
        if host.shun and node.name in host.shun:
            return WaitReason.GPU_AVOIDED
        if self.one_by_one and not selects(host, node.labels):
            return WaitReason.NODE_SELECTOR_MISMATCH
        if self.one_by_one and not volumes_reachable(host.volumes, node.labels):
            return WaitReason.NODE_VOLUME_ELSEWHERE
        for bar in self.bars:
            why = bar.why_not(node.labels.get(bar.key))
            if why is not None:
                return why
        if host.ports and self.fleet.peers.is_taken(node.name, host.ports):
            return WaitReason.NODE_HOST_PORT_TAKEN
        return None

    def may_use(self, gpu: Gpu, want: Want) -> bool:
        """Whether this GPU may serve a claim, whatever is booked on it."""
        if self.avoid and gpu.report.uuid in self.avoid:
            return False
        return not want.picky or not want.excludes(gpu)

    def wealth(self, gpu_percent: int) -> int:
        """The pod's CPU per GPU, as nodes are compared by it; NO_WEALTH when it requests no CPU."""
        if self.need.cpu_milli <= 0:
            return NO_WEALTH
        self.fleet.stock.measure_wealth()
        return wealth_of(self.need.cpu_milli, gpu_percent)

    def policy(self, group: NodeClass) -> Policy:
        """The policy in a class of nodes."""
        policy = policy_for(self.asking.node_policy, self.asking.gpu_policy, group.pool)
        if policy.nodes in {"fullest", "emptiest"}:
            self.fleet.stock.weigh_all()
        return policy


def look_for(fleet: Fleet, asking: Asking, avoid: Avoid) -> Look:
    """Prepare a search."""
    look = Look(fleet, asking, avoid, asking.host.room)
    if asking.steps:
        claims = zip(asking.claims, asking.steps, strict=True)
        look.wants = [fleet.wants.of(claim, asking.namespace, step) for claim, step in claims]
    else:
        look.wants = [fleet.wants.of(claim, asking.namespace) for claim in asking.claims]
    if asking.same_gpu:
        look.together = together_of(asking)
    look.one_by_one = fleet.stock.tell_apart_by(asking.host)
    if fleet.peers.tells_apart(asking):
        look.bars = bars_for(fleet.peers, asking)
        for bar in look.bars:
            fleet.stock.tell_apart_few(bar.key)
    look.picky = bool(look.bars or asking.host.ports or asking.host.shun)
    return look
