"""
Agents of a large fleet in one process, as the others see them: a connection to the broker each, its messages and their
pace, and answers to pulls. Devices and journals are left out, and every slice is made at once.
"""

import asyncio
import contextlib
import json
import random
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import grpc
from factories.words import write_of
from msgspec.structs import replace
from perf.fleet.wire import Wire

from sluice.contracts import messages as m
from sluice.contracts.bus import streams, subjects
from sluice.contracts.bus.codec import Undecodable, decode
from sluice.contracts.bus.events import Stream
from sluice.contracts.bus.subjects import Address
from sluice.contracts.fleet_file.empty_snapshots import empty_snapshot
from sluice.contracts.fleet_file.fleet_spec import NodeSpec
from sluice.contracts.ids import AllocationId, RunId
from sluice.contracts.pb import agent_pb2_grpc, node_pb2
from sluice.contracts.pb.agent_pb2 import GetInventoryRequest
from sluice.contracts.proto.snapshots import snapshot_to_proto
from sluice.runtime.grpc import transport
from sluice.runtime.nats import wire_format
from sluice.runtime.nats.connection import QUIET_PING_S, RECONNECT_WAIT_S
from sluice.runtime.nats.consumers import HEARTBEAT_S, PULL_EXPIRES_S, SHARED_PULL_EXPIRES_S, TAIL_HEARTBEAT_S
from sluice.runtime.nats.jetstream_bus import REFRESH_S
from sluice.runtime.nats.reader import ACK

RETRY_S = 1.0
IDLE, EXPIRED = 100, 408
"""Status of a heartbeat, and of a pull that ends without a message."""
ANNOUNCE_S = 0.05
"""After a change: an agent announces its next snapshot at its next turn."""
CONNECTING_MAX = 100
TTL_S = 3600


@dataclass
class Fleet:
    """What all agents share, and what they have seen."""

    host: str
    port: int
    login: Mapping[str, object]
    endpoint: str = ""
    agents: dict[str, "WireAgent"] = field(default_factory=dict)
    seen: Counter[str] = field(default_factory=Counter)
    connecting: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CONNECTING_MAX))

    @property
    def connected(self) -> int:
        return sum(agent.wire.connected for agent in self.agents.values())

    @property
    def opened(self) -> int:
        """Nodes whose head names the present run of their agent, in the incarnation that it reads."""
        return sum(agent.opened for agent in self.agents.values())

    @property
    def ready(self) -> int:
        return sum(len(agent.slices) for agent in self.agents.values())


class WireAgent:
    """One agent."""

    def __init__(self, fleet: Fleet, node: NodeSpec, run: str) -> None:
        self._fleet = fleet
        self._empty = replace(empty_snapshot(node), agent_run=RunId(run))
        self._name = self._empty.node
        self._durable = streams.consumer_of(self._name)
        self._operations = count(1)
        self.generation = 1
        self.slices: dict[AllocationId, m.Grant] = {}
        self.opened = False
        self._life = ""
        self._is_missing = False
        """Its durable, at the last look."""
        self._sequences: dict[str, int] = {}
        """Of its own last values in STATE: their guards."""
        self._pending: dict[str, tuple[Address, m.AnyMessage, int | None]] = {}
        """What is to be written next, while a write to the same subject is unanswered."""
        self._unanswered: dict[str, tuple[Address, m.AnyMessage, int | None]] = {}
        self._announcing: asyncio.TimerHandle | None = None
        self._timers: dict[asyncio.TimerHandle, None] = {}
        self._connecting: asyncio.Task[None] | None = None
        self._inbox = ""
        """Of the open pull, ..."""
        self._left = 0
        """... which takes so many more."""
        self._refresh_at = 0.0
        self.wire = Wire(fleet.login, up=self._up, down=self._down, delivered=self._delivered)

    async def _connect(self) -> None:
        """Until it succeeds: the broker may be away."""
        loop = asyncio.get_running_loop()
        while True:
            with contextlib.suppress(OSError):
                async with self._fleet.connecting:
                    await loop.create_connection(lambda: self.wire, self._fleet.host, self._fleet.port)
                    return
            await asyncio.sleep(RECONNECT_WAIT_S * random.uniform(1, 4))

    def _later(self, seconds: float, call: Any, *given: Any) -> None:
        def due() -> None:
            del self._timers[timer]
            call(*given)

        timer = asyncio.get_running_loop().call_later(seconds, due)
        self._timers[timer] = None

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    def _up(self) -> None:
        self._fleet.seen["connections"] += 1
        self._later(random.uniform(0, QUIET_PING_S), self._ping)
        self._pending, self._unanswered = self._unanswered | self._pending, {}
        self._read()
        for subject in list(self._pending):
            self._write_next(subject)

    def _down(self) -> None:
        self.stop()
        if self._name in self._fleet.agents:
            self._fleet.seen["connections lost"] += 1
            self.start()

    def start(self) -> None:
        self._connecting = asyncio.get_running_loop().create_task(self._connect())

    def stop(self) -> None:
        """End what is under way."""
        for timer in self._timers:
            timer.cancel()
        self._timers = {}
        if self._announcing is not None:
            self._announcing.cancel()
            self._announcing = None
        if self._connecting is not None:
            self._connecting.cancel()

    def _ping(self) -> None:
        self.wire.ping()
        self._later(QUIET_PING_S, self._ping)

    # Reading: the durable is found, reset to the first entry, and pulled; at the end for one entry at a time.

    def _read(self) -> None:
        self.wire.request(f"$JS.API.CONSUMER.INFO.{Stream.BOOK}.{self._durable}", b"", self._found)

    def _found(self, info: dict[str, Any]) -> None:
        if "config" not in info:
            if (
                not self._is_missing
            ):  # the bus is new, or was emptied: the allocator makes the durable of a node it knows
                self._is_missing, self.opened, self._sequences = True, False, {}
                self._publish_all()
            self._later(RETRY_S, self._read)
            return
        self._is_missing = False
        self._life = (info["config"].get("metadata") or {}).get(streams.INCARNATION_KEY, "")
        reset = f"$JS.API.CONSUMER.RESET.{Stream.BOOK}.{self._durable}"
        self.wire.request(reset, json.dumps({"seq": 1}).encode(), self._reset)

    def _reset(self, info: dict[str, Any]) -> None:
        if "num_pending" not in info:
            self._later(RETRY_S, self._read)
            return
        self._fleet.seen["readings"] += 1
        self._refresh_at = self._now() + REFRESH_S * random.uniform(0.9, 1.1)
        self._pull(info["num_pending"])

    def _pull(self, behind: int) -> None:
        left_s = self._refresh_at - self._now()
        if left_s <= 0:
            self._read()
            return
        batch, expires_s, heartbeat_s = min(behind, streams.ACKS_PENDING_MAX), SHARED_PULL_EXPIRES_S, HEARTBEAT_S
        if not behind:
            batch, expires_s = 1, max(SHARED_PULL_EXPIRES_S, min(left_s, PULL_EXPIRES_S))
            heartbeat_s = min(TAIL_HEARTBEAT_S, expires_s / 3)
        self.wire.forget(self._inbox)
        self._left, self._inbox = batch, self.wire.listen(self._told)
        wanted = {"batch": batch, "expires": int(expires_s * 1e9), "idle_heartbeat": int(heartbeat_s * 1e9)}
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{Stream.BOOK}.{self._durable}"
        self.wire.publish(subject, json.dumps(wanted).encode(), reply=self._inbox)

    def _told(self, _subject: str, _reply: str, status: int, _payload: bytes) -> None:
        if status == IDLE:
            return
        self.wire.forget(self._inbox)
        if status == EXPIRED:
            self._pull(0)
        else:
            self._later(RETRY_S, self._read)

    def _delivered(self, _subject: str, reply: str, _status: int, data: bytes) -> None:
        delivery = wire_format.delivery_of(reply)
        assert delivery is not None, reply
        envelope = decode(data)
        assert not isinstance(envelope, Undecodable), envelope
        self.wire.publish(reply, ACK)
        self._obey(envelope.message)
        self._left -= 1
        if not self._left:
            self._pull(delivery.pending)

    # Orders, and the messages that answer them.

    def _obey(self, message: m.AnyMessage) -> None:
        match message:
            case m.NodeOpened():
                self.opened = message.agent_run == self._empty.agent_run and message.incarnation == self._life
            case m.Grant() if message.booking.allocation not in self.slices:
                self.slices[message.booking.allocation] = message
                self._publish_slice(message)
                self._changed()
            case m.Revoke() if self.slices.pop(message.booking.allocation, None):
                booking = message.booking
                about = {"allocation": booking.allocation, "request": booking.request, "revision": message.revision}
                self._write(subjects.slice_(self._name, booking.allocation), m.SliceGone(**about, cause="revoked"))
                self._changed()
            case m.Closed():
                about = {"allocation": message.allocation, "request": message.request, "revision": message.revision}
                last = m.SliceGone(**about, cause=message.cause, closing=True)
                self._write(subjects.slice_(self._name, message.allocation), last, TTL_S)

    def _publish_all(self) -> None:
        for grant in self.slices.values():
            self._publish_slice(grant)
        self._announce()

    def _publish_slice(self, grant: m.Grant) -> None:
        booking = grant.booking
        devices = tuple(
            m.DeviceState(gpu=each.gpu, profile=each.profile, start=each.start, size=each.size, uuid=_uuid(each))
            for each in booking.devices
        )
        about = {"allocation": booking.allocation, "request": booking.request, "revision": grant.revision}
        ready = m.SliceReady(**about, ticket=f"/run/sluice/{booking.allocation}", devices=devices, containers=())
        self._write(subjects.slice_(self._name, booking.allocation), ready)

    def _changed(self) -> None:
        if self._announcing is None:
            self._announcing = asyncio.get_running_loop().call_later(ANNOUNCE_S, self._announce_change)

    def _announce_change(self) -> None:
        self._announcing = None
        self.generation += 1
        self._announce()

    def _announce(self) -> None:
        about = {name: getattr(self._empty, name) for name in ("node", "boot_id", "agent_run")}
        changed = m.NodeChanged(**about, endpoint=self._fleet.endpoint, generation=self.generation, gpus=())
        self._write(subjects.node(self._name), changed)

    def _write(self, address: Address, message: m.AnyMessage, ttl_s: int | None = None) -> None:
        """Guarded by the last value; the latest message waits while one is unanswered."""
        subject = address.subject
        if subject in self._unanswered:
            self._pending[subject] = address, message, ttl_s
            return
        self._unanswered[subject] = address, message, ttl_s
        expected = self._sequences.get(subject, 0)
        operation = f"{self._empty.agent_run}-{next(self._operations)}"
        write = write_of(address, message, expected, operation, request=getattr(message, "request", ""))
        headers = {wire_format.EXPECTED: str(expected), wire_format.EXPECTED_SUBJECT: address.guard}
        if ttl_s is not None:
            headers[wire_format.TTL] = f"{ttl_s}s"

        def answered(answer: dict[str, Any]) -> None:
            again = self._unanswered.pop(subject)
            error = answer.get("error")
            if "seq" in answer:
                self._sequences[subject] = answer["seq"]
            elif error and error.get("err_code") == wire_format.WRONG_LAST_SEQUENCE:
                # A real agent reads its last value first; here the refusal shows it, because it alone writes there.
                self._sequences[subject] = int(error["description"].rpartition(" ")[2])
                self._pending.setdefault(subject, again)
            else:
                self._pending.setdefault(subject, again)
                self._later(RETRY_S, self._write_next, subject)
                return
            self._write_next(subject)

        data = wire_format.envelope_bytes(write, "2026-01-01T00:00:00.000")
        self.wire.request(subject, data, answered, headers)

    def _write_next(self, subject: str) -> None:
        if subject in self._pending:
            self._write(*self._pending.pop(subject))

    def answer(self, request: GetInventoryRequest) -> node_pb2.NodeSnapshot:
        run = self._empty.agent_run
        if (request.known_run, request.known_generation) == (run, self.generation):
            about = {"node": self._name, "boot_id": self._empty.boot_id, "agent_run": run}
            return node_pb2.NodeSnapshot(**about, generation=self.generation, unchanged=True)
        return self._snapshot()

    def _snapshot(self) -> node_pb2.NodeSnapshot:
        reports = tuple(
            m.SliceReport(booking=each.booking, revision=each.revision, state="ready", revoked=False)
            for each in self.slices.values()
        )
        instances: dict[str, list[m.InstanceReport]] = {}
        for grant in self.slices.values():
            for each in grant.booking.devices:
                found = instances.setdefault(each.gpu, [])
                place = {"profile": each.profile or "", "start": each.start, "size": each.size, "uuid": _uuid(each)}
                found.append(m.InstanceReport(gi_id=len(found) + 1, **place, allocation=grant.booking.allocation))
        gpus = tuple(replace(each, instances=tuple(instances.get(each.uuid, ()))) for each in self._empty.gpus)
        return snapshot_to_proto(replace(self._empty, generation=self.generation, gpus=gpus, slices=reports))


def _uuid(device: m.DeviceGrant) -> str:
    return f"MIG-{device.gpu}-{device.start}"


class _Answers(agent_pb2_grpc.AgentServiceServicer):
    """Answers pulls of all nodes at one address."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def GetInventory(  # noqa: N802 - gRPC's name
        self, request: GetInventoryRequest, context: grpc.aio.ServicerContext
    ) -> node_pb2.NodeSnapshot:
        agent = self._fleet.agents.get(request.node)
        if agent is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"there is no node {request.node}")
            raise AssertionError("abort raises")
        self._fleet.seen["pulls"] += 1
        return agent.answer(request)


@asynccontextmanager
async def running(fleet: Fleet, nodes: Iterable[NodeSpec]) -> AsyncIterator[None]:
    """Agents for these nodes, until the end."""
    answers = _Answers(fleet)
    serving = transport.serve(lambda server: agent_pb2_grpc.add_AgentServiceServicer_to_server(answers, server))
    async with serving as fleet.endpoint:
        run = secrets.token_hex(4)
        fleet.agents = {str(node.name): WireAgent(fleet, node, f"{run}-{at}") for at, node in enumerate(nodes)}
        for agent in fleet.agents.values():
            agent.start()
        try:
            yield
        finally:
            agents, fleet.agents = fleet.agents, {}
            for agent in agents.values():
                agent.stop()
                agent.wire.close()
