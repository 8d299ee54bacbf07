"""
Asks node agents over gRPC, and says what came of it. Never raises over an agent's doing, and never waits without bound.

Whether an answer is usable is decided by the core; here it only has to be an answer: understood, of a size that the
bus can carry.
"""

import resource
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import grpc.aio
import msgspec

from sluice.contracts.bus import subjects
from sluice.contracts.bus.codec import MESSAGE_BYTES_MAX, Undecodable
from sluice.contracts.bus.subject_schema import schema_violation
from sluice.contracts.ids import NodeName
from sluice.contracts.messages import NodeInventory, NodeSnapshot
from sluice.contracts.messages.base import SLICES_MAX
from sluice.contracts.pb import node_pb2
from sluice.contracts.pb.agent_pb2 import GetInventoryRequest
from sluice.contracts.pb.agent_pb2_grpc import AgentServiceStub
from sluice.contracts.proto.snapshots import snapshot_from_proto
from sluice.contracts.reasons import shorten
from sluice.contracts.rpc_permissions import node_dns_name
from sluice.runtime import logs
from sluice.runtime.clock import Clock
from sluice.runtime.grpc import transport
from sluice.runtime.grpc.security import LOOPBACK, CertificateMaterial, TransportSecurity
from sluice.runtime.nats.wire_format import AGENTS_WORD_BYTES_MAX
from sluice.runtime.tracing.request_traces import RequestTraces
from sluice_inventory.core.events import Pull, PullFailed, PullSucceeded

SNAPSHOT_BYTES_MAX = MESSAGE_BYTES_MAX - AGENTS_WORD_BYTES_MAX - 10_000
"""What fits into one message on the bus, with why it is stale (which names the agent's news) and its envelope."""
NAME_MAX = 253
"""Of a name in a snapshot, as Kubernetes has it for its own. Others repeat them, in words that must fit on the bus."""
WHY_MAX = 400
"""Of what is said of a failed pull, and again with its inventory: much of it is the agent's own text."""
CHANNELS_MAX = 5120
"""
Channels held open to agents; beyond that, the one not used for longest is closed. Some 80 kB each, and a new one costs
seven times what a pull over one that is held costs, for its TLS handshake (measured with grpcio 1.85).
"""


@dataclass(slots=True)
class _AgentChannel:
    """An open channel to one node's agent."""

    endpoint: str
    stack: AsyncExitStack
    agent: AgentServiceStub
    shown: CertificateMaterial | None
    """What we show of ourselves over this channel."""


class Puller:
    """Pulls nodes, each over a channel of its own that stays open while it works."""

    def __init__(
        self,
        clock: Clock,
        *,
        timeout_s: float,
        channels_max: int = CHANNELS_MAX,
        security: TransportSecurity = LOOPBACK,
        traces: RequestTraces | None = None,
    ) -> None:
        """Hold no channel yet. With a certificate, only who shows one of its node's agent is believed."""
        self._clock = clock
        self._timeout_s = timeout_s
        self._channels_max = channels_max
        self._security = security
        self._traces = traces or RequestTraces()
        self._refused: dict[NodeName, str] = {}
        """What is wrong with a node's certificate, or with ours, as it was logged."""
        self._channels: OrderedDict[NodeName, _AgentChannel] = OrderedDict()
        self._log = logs.get("puller")

    async def pull(self, pull: Pull) -> PullSucceeded | PullFailed:
        """Ask one agent. Returns within the timeout; at most one call for one node at a time."""
        try:
            channel = await self._take_channel(pull)
        except transport.PlainTextError as error:
            return self._refuse(pull, str(error))
        try:
            answer = await channel.agent.GetInventory(GetInventoryRequest(node=pull.node), timeout=self._timeout_s)
            self._refused.pop(pull.node, None)
            await self._put_back(pull.node, channel)
        except grpc.aio.AioRpcError as error:
            untrusted = transport.why_untrusted(error, security=self._security, server_name=node_dns_name(pull.node))
            if untrusted:
                return self._refuse(pull, untrusted)
            message = f"{error.code().name}: {shorten(error.details() or '', 200)}"
            self._log.debug("a pull failed", node=pull.node, endpoint=shorten(pull.endpoint), error=message)
            return _failed(pull, message)
        finally:
            if self._channels.get(pull.node) is not channel:
                # A new channel connects at once; one that failed would first wait out its own back-off.
                await channel.stack.aclose()
        return self._judge(pull, answer)

    def _refuse(self, pull: Pull, why: str) -> PullFailed:
        """A pull that will come to nothing until a person sees to it: said loudly, once."""
        why = shorten(why, WHY_MAX)
        if self._refused.get(pull.node) != why:
            self._refused[pull.node] = why
            while len(self._refused) > self._channels_max:
                del self._refused[next(iter(self._refused))]
            self._log.warning("an agent cannot be pulled", node=pull.node, endpoint=shorten(pull.endpoint), why=why)
        return _failed(pull, why)

    def _judge(self, pull: Pull, answer: node_pb2.NodeSnapshot) -> PullSucceeded | PullFailed:
        """Whether an answer can be understood and carried on."""
        found = _read(answer)
        if isinstance(found, Undecodable):
            why = shorten(found.why, WHY_MAX)
            self._log.warning("an agent's answer is unusable", node=pull.node, endpoint=shorten(pull.endpoint), why=why)
            return _failed(pull, why)
        if found.node != pull.node:
            self._log.warning(
                "an agent answers for another node", node=pull.node, endpoint=shorten(pull.endpoint), of=found.node
            )
        return PullSucceeded(pull.node, found, self._clock.utc().isoformat(timespec="milliseconds"))

    async def close(self) -> None:
        """Close all channels."""
        while self._channels:
            _, channel = self._channels.popitem()
            await channel.stack.aclose()

    # -- channels -------------------------------------------------------------------------------------------------

    async def _take_channel(self, pull: Pull) -> _AgentChannel:
        """The node's channel, for the time of one call. Nobody else can close it meanwhile."""
        channel = self._channels.pop(pull.node, None)
        shown = self._security.current()
        if channel is not None and channel.endpoint == pull.endpoint and channel.shown is shown:
            return channel
        if channel is not None:
            await channel.stack.aclose()
        stack = AsyncExitStack()
        opened = transport.channel(
            pull.endpoint,
            deadline_s=self._timeout_s,
            security=self._security,
            server_name=node_dns_name(pull.node),
            traces=self._traces,
        )
        return _AgentChannel(pull.endpoint, stack, AgentServiceStub(await stack.enter_async_context(opened)), shown)

    async def _put_back(self, node: NodeName, channel: _AgentChannel) -> None:
        self._channels[node] = channel
        while len(self._channels) > self._channels_max:
            _, oldest = self._channels.popitem(last=False)
            await oldest.stack.aclose()


def channels_max() -> int:
    """How many channels this process may hold open: CHANNELS_MAX, or what half of its file descriptors are."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CHANNELS_MAX if soft == resource.RLIM_INFINITY else max(1, min(CHANNELS_MAX, soft // 2))


def _failed(pull: Pull, why: str) -> PullFailed:
    """Agents say themselves where they are: that, too, may be any text. `why` has been shortened."""
    return PullFailed(pull.node, f"{shorten(pull.endpoint)}: {why}")


def _read(answer: node_pb2.NodeSnapshot) -> NodeSnapshot | Undecodable:
    """The snapshot in an answer. Its size in protobuf is looked at first: reading a huge one takes long."""
    size_bytes = answer.ByteSize()
    if size_bytes <= SNAPSHOT_BYTES_MAX:
        found = snapshot_from_proto(answer)
        if isinstance(found, Undecodable):
            return found
        encoded = msgspec.json.encode(found)
        size_bytes = len(encoded)
        if size_bytes <= SNAPSHOT_BYTES_MAX:
            return _validated(found, encoded)
    return Undecodable(f"a snapshot of {size_bytes} bytes is over the limit of {SNAPSHOT_BYTES_MAX}")


def _validated(found: NodeSnapshot, encoded: bytes) -> NodeSnapshot | Undecodable:
    """The snapshot, if those who read it on the bus would take it: otherwise each of them would set it aside."""
    try:
        msgspec.json.decode(encoded, type=NodeSnapshot)
    except msgspec.ValidationError as error:
        return Undecodable(str(error)[:300])
    address = subjects.inventory(found.node)
    why = schema_violation(address, NodeInventory(snapshot=found, stale=False)) or _implausible_reason(found)
    return Undecodable(why) if why else found


def _implausible_reason(found: NodeSnapshot) -> str:
    """What in a snapshot nobody could carry on in words or sums of his own, in a sentence; empty for a snapshot."""
    for name in (found.boot_id, found.agent_run, *_names_of_gpus(found)):
        if len(name) > NAME_MAX:
            return f"a name of {len(name)} characters is over the limit of {NAME_MAX}: {shorten(name)}"
    for gpu in found.gpus:
        for profile, count in gpu.creatable.items():
            if not 0 <= count <= SLICES_MAX:
                return f"{gpu.uuid} says that {count} instances of {profile} fit on it"
    return ""


def _names_of_gpus(found: NodeSnapshot) -> Iterator[str]:
    """The names that allocations and counts take from GPUs."""
    for gpu in found.gpus:
        yield gpu.uuid
        yield gpu.model
        yield from gpu.creatable
        yield from (profile.name for profile in gpu.profiles)
        for instance in gpu.instances:
            yield instance.profile
            yield instance.uuid
