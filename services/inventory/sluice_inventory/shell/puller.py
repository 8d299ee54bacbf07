"""Pulls node agents over gRPC and returns the result. No agent can make it raise or wait without bound. The core
decides whether an answer is usable; here it only has to be readable and small enough for the bus."""

import resource
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import grpc.aio
import msgspec

from sluice.contracts.bus import subjects
from sluice.contracts.bus.codec import MESSAGE_BYTES_MAX, Undecodable, schema_violation
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
from sluice.runtime.bounded_dict import BoundedDict
from sluice.runtime.clock import Clock
from sluice.runtime.grpc import transport
from sluice.runtime.grpc.security import LOOPBACK, TransportSecurity
from sluice.runtime.nats.wire_format import AGENTS_WORD_BYTES_MAX
from sluice.runtime.tls.certificate_files import CertificateMaterial
from sluice.runtime.tracing.request_traces import RequestTraces
from sluice_inventory.core.events import Pull, PullFailed, PullSucceeded

SNAPSHOT_BYTES_MAX = MESSAGE_BYTES_MAX - AGENTS_WORD_BYTES_MAX - 10_000
"""Fits into one bus message with its envelope and the reason for being stale, which quotes an announcement."""
NAME_MAX = 253
"""Of a name in a snapshot: Kubernetes' own limit. Others repeat names in messages that must fit on the bus."""
WHY_MAX = 400  # of the reason of a failed pull, also published with its inventory: much of it is the agent's own text
CHANNELS_MAX = 16_384
"""Open channels to agents; beyond that, the least recently used is closed. Some 80 kB each, and a new one costs seven
times a pull over an open one, for its TLS handshake (measured with grpcio 1.85)."""


@dataclass(slots=True)
class _AgentChannel:
    """An open channel to one node's agent."""

    endpoint: str
    certificate: str
    stack: AsyncExitStack
    agent: AgentServiceStub
    shown: CertificateMaterial | None  # the certificate that we use on this channel


class Puller:
    """Pulls nodes, each over its own channel that stays open while it works."""

    def __init__(
        self,
        clock: Clock,
        *,
        timeout_s: float,
        channels_max: int = CHANNELS_MAX,
        security: TransportSecurity = LOOPBACK,
        traces: RequestTraces | None = None,
    ) -> None:
        """Start without channels. With a certificate, an agent must prove that it is its node's."""
        self._clock, self._timeout_s, self._channels_max, self._security = clock, timeout_s, channels_max, security
        self._traces = traces or RequestTraces()
        self._refused: BoundedDict[NodeName, str] = BoundedDict(channels_max)
        """Problems of a node's certificate, or of ours, as logged."""
        self._channels: OrderedDict[NodeName, _AgentChannel] = OrderedDict()
        self._known: BoundedDict[NodeName, NodeSnapshot] = BoundedDict(channels_max)
        """The last readable snapshot of each node: most agents have nothing newer to say."""
        self._log = logs.get("puller")

    async def pull(self, pull: Pull) -> PullSucceeded | PullFailed:
        """Ask one agent. Returns within the timeout; at most one call for one node at a time."""
        try:
            channel = await self._take_channel(pull)
        except transport.PlainTextError as error:
            return self._refuse(pull, str(error))
        known = self._known.get(pull.node)
        wanted = GetInventoryRequest(
            node=pull.node,
            known_run=known.agent_run if known is not None else "",
            known_generation=known.generation if known is not None else 0,
        )
        try:
            answer = await channel.agent.GetInventory(wanted, timeout=self._timeout_s)
            self._refused.pop(pull.node, None)
            await self._put_back(pull.node, channel)
        except grpc.aio.AioRpcError as error:
            security, name = self._security.trusting(pull.certificate), node_dns_name(pull.node)
            untrusted = transport.why_untrusted(error, security=security, server_name=name)
            if untrusted:
                return self._refuse(pull, untrusted)
            message = f"{error.code().name}: {shorten(error.details() or '', 200)}"
            self._log.debug("a pull failed", node=pull.node, endpoint=shorten(pull.endpoint), error=message)
            return _failed(pull, message)
        finally:
            if self._channels.get(pull.node) is not channel:
                # A new channel connects at once; a failed one would first wait out its own back-off.
                await channel.stack.aclose()
        return self._judge(pull, _combined(answer, known))

    def _refuse(self, pull: Pull, why: str) -> PullFailed:
        why = shorten(why, WHY_MAX)
        if self._refused.get(pull.node) != why:
            self._refused.put(pull.node, why)
            self._log.warning("an agent cannot be pulled", node=pull.node, endpoint=shorten(pull.endpoint), why=why)
        return _failed(pull, why)

    def _judge(self, pull: Pull, found: NodeSnapshot | Undecodable) -> PullSucceeded | PullFailed:
        if isinstance(found, Undecodable):
            why = shorten(found.why, WHY_MAX)
            self._log.warning("an agent's answer is unusable", node=pull.node, endpoint=shorten(pull.endpoint), why=why)
            return _failed(pull, why)
        self._known.put(pull.node, found)
        if found.node != pull.node:
            self._log.warning(
                "an agent answers for another node", node=pull.node, endpoint=shorten(pull.endpoint), of=found.node
            )
        return PullSucceeded(pull.node, found, self._clock.utc().isoformat(timespec="milliseconds"))

    async def close(self) -> None:
        while self._channels:
            _, channel = self._channels.popitem()
            await channel.stack.aclose()

    async def _take_channel(self, pull: Pull) -> _AgentChannel:
        channel = self._channels.pop(pull.node, None)
        shown = self._security.current()
        to = (channel.endpoint, channel.certificate) if channel is not None else None
        if channel is not None and to == (pull.endpoint, pull.certificate) and channel.shown is shown:
            return channel
        if channel is not None:
            await channel.stack.aclose()
        stack = AsyncExitStack()
        opened = transport.channel(
            pull.endpoint,
            deadline_s=self._timeout_s,
            security=self._security.trusting(pull.certificate),
            server_name=node_dns_name(pull.node),
            traces=self._traces,
        )
        agent = AgentServiceStub(await stack.enter_async_context(opened))
        return _AgentChannel(pull.endpoint, pull.certificate, stack, agent, shown)

    async def _put_back(self, node: NodeName, channel: _AgentChannel) -> None:
        self._channels[node] = channel
        while len(self._channels) > self._channels_max:
            _, oldest = self._channels.popitem(last=False)
            await oldest.stack.aclose()


def channels_max() -> int:
    """How many channels this process may hold open: CHANNELS_MAX, or half of its file descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CHANNELS_MAX if soft == resource.RLIM_INFINITY else max(1, min(CHANNELS_MAX, soft // 2))


def _failed(pull: Pull, why: str) -> PullFailed:
    """Agents choose their endpoint: it, too, may be any text. `why` has been shortened."""
    return PullFailed(pull.node, f"{shorten(pull.endpoint)}: {why}")


def _combined(answer: node_pb2.NodeSnapshot, known: NodeSnapshot | None) -> NodeSnapshot | Undecodable:
    """The snapshot that an answer gives, or says to be the `known` one still."""
    if not answer.unchanged:
        return _read(answer)
    said = (answer.node, answer.boot_id, answer.agent_run, answer.generation)
    if known is None or said != (known.node, known.boot_id, known.agent_run, known.generation):
        return Undecodable(f"it says that generation {answer.generation} is unchanged, which is not known here")
    return known


def _read(answer: node_pb2.NodeSnapshot) -> NodeSnapshot | Undecodable:
    """The snapshot in an answer. Its size in protobuf is checked first: parsing a huge one takes long."""
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
    """The snapshot, if readers on the bus would accept it: otherwise each of them would set it aside."""
    try:
        msgspec.json.decode(encoded, type=NodeSnapshot)
    except msgspec.ValidationError as error:
        return Undecodable(str(error)[:300])
    address = subjects.inventory(found.node)
    why = schema_violation(address, NodeInventory(snapshot=found, stale=False)) or _implausible_reason(found)
    return Undecodable(why) if why else found


def _implausible_reason(found: NodeSnapshot) -> str:
    """Why other services could not repeat or sum up a snapshot, in a sentence; empty when they can."""
    for name in (found.boot_id, found.agent_run, *_names_of_gpus(found)):
        if len(name) > NAME_MAX:
            return f"a name of {len(name)} characters is over the limit of {NAME_MAX}: {shorten(name)}"
    for gpu in found.gpus:
        for profile, count in gpu.creatable.items():
            if not 0 <= count <= SLICES_MAX:
                return f"{gpu.uuid} says that {count} instances of {profile} fit on it"
    return ""


def _names_of_gpus(found: NodeSnapshot) -> Iterator[str]:
    for gpu in found.gpus:
        yield gpu.uuid
        yield gpu.model
        yield from gpu.creatable
        yield from (profile.name for profile in gpu.profiles)
        for instance in gpu.instances:
            yield instance.profile
            yield instance.uuid
