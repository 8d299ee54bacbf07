"""Processes with a deployment's certificates reach their peers; an impostor is not trusted, and a person reads why."""

import asyncio
import datetime as dt
import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
import pytest
import pytest_asyncio
from factories.broker.bus_rigs import broker_and_bus
from factories.credentials import Authority, Files
from factories.inventory import news
from factories.processes import finished, own_environment
from factories.system import fleet_text
from factories.waiting import until
from factories.words import write_of

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Stream, WriteAccepted
from sluice.contracts.ids import NodeName
from sluice.contracts.messages import NodeChanged, NodeInventory
from sluice.contracts.pb import agent_pb2, agent_pb2_grpc, health_pb2, health_pb2_grpc, inventory_pb2, node_pb2
from sluice.contracts.pb.inventory_pb2_grpc import InventoryServiceStub
from sluice.contracts.rpc_permissions import Caller, dns_name, node_dns_name
from sluice.contracts.slice_usage import NodeUsage
from sluice.runtime.grpc import transport
from sluice.runtime.grpc.security import TlsIdentity, TransportSecurity
from sluice.runtime.grpc.usage_client import ask_agents
from sluice.runtime.nats.jetstream_bus import NatsBus
from sluice.runtime.nats_server.free_ports import free_ports
from sluice.runtime.tls.certificate_authority import AS_SERVER, issue
from sluice_pod_watcher.shell.callout.keeper import authority_of, of_services

NODE, OTHER = NodeName("gpu-1.example.internal"), NodeName("gpu-2")
FLEET = fleet_text(1, 1, prefix=NODE)
POD = """
apiVersion: v1
kind: Pod
metadata: {name: train, annotations: {sluice.dev/profile: 1g.5gb}}
spec: {containers: [{name: main, image: train}]}
"""


@dataclass
class Rig:
    """A broker, a folder, and processes that are stopped at the end."""

    url: str
    bus: NatsBus
    folder: Path
    ports: dict[str, int]

    def files(self, who: str) -> Files:
        """The deployment's files for a service or a node."""
        folder = self.folder / "made" / who
        if (folder / "identity.pem").exists():  # one file for both, as a node has it
            return Files(folder / "identity.pem", folder / "identity.pem", folder / "ca.crt")
        return Files(folder / "tls.crt", folder / "tls.key", folder / "ca.crt")

    def security(self, who: str) -> TransportSecurity:
        files = self.files(who)
        return TransportSecurity(TlsIdentity(files.certificate, files.key, files.authority))

    def environment(self, certificates: Files | None, **more: str) -> dict[str, str]:
        own = {} if certificates is None else certificates.environment()
        common = {
            "SLUICE_NATS_URL": self.url,
            "SLUICE_LOG_FORMAT": "json",
            "SLUICE_DATA_DIR": str(self.folder / "data"),
        }
        return own_environment() | common | own | more

    @asynccontextmanager
    async def runs(self, service: str, certificates: Files | None, **more: str) -> AsyncIterator[Callable[[], str]]:
        """A service's process for the time of the `async with`. Gives its log."""
        log = self.folder / f"{service}.log"
        with log.open("ab") as output:
            command, environment = (sys.executable, "-m", f"sluice_{service}"), self.environment(certificates, **more)
            process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=output, stderr=output)
        try:
            yield log.read_text
        finally:
            if process.returncode is None:
                process.terminate()
            await asyncio.wait_for(process.wait(), 60)

    async def ended(self, service: str, certificates: Files | None, *words: str, **more: str) -> tuple[int, str]:
        """Run a process that ends by itself; its exit code and its output, as one line."""
        command = (sys.executable, "-m", f"sluice_{service}", *words)
        code, out, err = await finished(*command, environment=self.environment(certificates, **more))
        return code, " ".join(f"{out} {err}".split())  # a terminal's width breaks lines

    async def is_pulled(self) -> bool:
        """Whether the inventory of the node is published, and fresh."""
        entry = await self.bus.last(Stream.STATE, subjects.inventory(NODE).subject)
        return entry is not None and isinstance(entry.message, NodeInventory) and not entry.message.stale

    async def ready(self, service: str) -> None:
        """Probe as a kubelet does, until it is ready; bounded."""
        async with transport.channel(f"127.0.0.1:{self.ports[service]}") as channel:

            async def serving() -> bool:
                answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
                return answer.status == health_pb2.HealthCheckResponse.SERVING

            await until(serving, f"{service} serves", yet=(grpc.aio.AioRpcError,))

    async def says_it_is_at(self, node: NodeName, endpoint: str) -> None:
        """Announce a node's agent on the bus, as with a stolen password."""
        address = subjects.node(node)
        entry = await self.bus.last(Stream.STATE, address.subject)
        expected = 0 if entry is None else entry.sequence
        write = write_of(address, news(generation=1000, node=node, endpoint=endpoint), expected, f"thief-{expected}")
        assert isinstance(await self.bus.write(write, {}), WriteAccepted)


@pytest_asyncio.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    """A broker, certificates of services as a cluster has them, and of nodes as an installation without one has."""
    now = dt.datetime.now(dt.UTC)
    authority = authority_of({}, now)
    made = of_services(authority, {}, now)
    for caller in Caller:
        _lay(tmp_path / "made" / caller.value, {**made[f"sluice-grpc-{caller.value}"], "ca.crt": authority.certificate})
    for node in (NODE, OTHER):
        pair = issue(authority, (node_dns_name(node),), (AS_SERVER,), now)
        both = {"identity.pem": pair.certificate + pair.key, "ca.crt": authority.certificate}
        _lay(tmp_path / "made" / node, both)
    ports = dict(zip(("allocator", "inventory", "node-agent", "serving"), free_ports(4), strict=True))
    async with broker_and_bus(tmp_path) as (broker, bus):
        yield Rig(broker.url, bus, tmp_path, ports)


def _lay(folder: Path, content: Mapping[str, bytes]) -> None:
    folder.mkdir(parents=True)
    for name, data in content.items():
        (folder / name).write_bytes(data)


class _Impostor(agent_pb2_grpc.AgentServiceServicer):
    """Answers for a node that is not its own."""

    def __init__(self) -> None:
        self.asked = 0

    async def GetInventory(self, request, context):  # noqa: N802 - the method's name in the contract
        self.asked += 1
        return node_pb2.NodeSnapshot(node=request.node)

    def register(self, server) -> None:
        agent_pb2_grpc.add_AgentServiceServicer_to_server(self, server)


@pytest.mark.slow
async def test_every_service_connects_to_its_peers_and_to_no_other(rig: Rig) -> None:
    """Pulls, people's calls, probes; an impostor, a foreign authority, a person without a right."""
    fleet, pod = rig.folder / "fleet.toml", rig.folder / "pod.yaml"
    fleet.write_text(FLEET)
    pod.write_text(POD)
    serving = f"127.0.0.1:{rig.ports['serving']}"
    inventory = {
        "SLUICE_INVENTORY_GRPC_ADDRESS": serving,
        "SLUICE_INVENTORY_HEALTH_ADDRESS": f"127.0.0.1:{rig.ports['inventory']}",
        "SLUICE_INVENTORY_PULL_INTERVAL_S": "0.5",
        "SLUICE_INVENTORY_PULL_TIMEOUT_S": "1",
        "SLUICE_INVENTORY_STALE_AFTER_S": "2",
        "SLUICE_INVENTORY_RETRY_MAX_S": "0.5",
    }
    allocator = {"SLUICE_ALLOCATOR_HEALTH_ADDRESS": f"127.0.0.1:{rig.ports['allocator']}"}
    agent = {
        "SLUICE_NODE_AGENT_FLEET_FILE": str(fleet),
        "SLUICE_NODE_AGENT_HEALTH_ADDRESS": f"127.0.0.1:{rig.ports['node-agent']}",
        "SLUICE_GRPC_CA_FILE": str(rig.files(NODE).authority),  # it makes its own certificate
    }
    async with rig.runs("inventory", rig.files("inventory"), **inventory) as logged:
        async with rig.runs("allocator", rig.files("allocator"), **allocator), rig.runs("node_agent", None, **agent):
            await until(rig.is_pulled, "the inventory is published")
            for service in ("allocator", "inventory", "node-agent"):
                await rig.ready(service)
            # People: one with a right, one without, one without a certificate.
            await _asks(rig, serving)
            await _page_asks(rig, pod)
            code, text = await rig.ended("console", rig.files("console"), "simulate", "-f", str(pod))
            assert code == 0, text
            code, text = await rig.ended("console", rig.files("inventory"), "simulate", "-f", str(pod))
            assert (code, "the certificate of this caller says inventory.sluice.internal" in text) == (1, True)
            code, text = await rig.ended("console", None, "simulate", "-f", str(pod))
            assert (code, "does it require TLS?" in text) == (1, True)
        await _impostors(rig, logged, serving)


async def _asks(rig: Rig, serving: str) -> None:
    name = dns_name(Caller.INVENTORY)
    async with transport.channel(serving, security=rig.security("operator"), server_name=name) as channel:
        listed = await InventoryServiceStub(channel).ListGpus(inventory_pb2.ListGpusRequest())
    assert listed.totals.creatable_total == 19
    async with transport.channel(serving, security=rig.security("allocator"), server_name=name) as channel:
        # Its certificate is a server's: the TLS handshake already fails.
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await InventoryServiceStub(channel).ListGpus(inventory_pb2.ListGpusRequest())
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def _page_asks(rig: Rig, pod: Path) -> None:
    """The page: it can read what slices are used for, and its certificate gives access to nothing else."""
    news = await rig.bus.last(Stream.STATE, subjects.node(NODE).subject)
    assert isinstance(news.message, NodeChanged)
    answers = await ask_agents({NODE: news.message.address}, rig.security("web"))
    assert isinstance(answers[NODE], NodeUsage), answers
    async with transport.channel(
        news.message.endpoint,
        security=rig.security("web").trusting(news.message.certificate),
        server_name=node_dns_name(NODE),
    ) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await agent_pb2_grpc.AgentServiceStub(channel).GetInventory(agent_pb2.GetInventoryRequest(node=NODE))
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    code, text = await rig.ended("console", rig.files("web"), "simulate", "-f", str(pod))
    assert (code, "the certificate of this caller says web.sluice.internal" in text) == (1, True), text


async def _impostors(rig: Rig, logged: Callable[[], str], serving: str) -> None:
    """An impostor answers for a node with another node's certificate; another has its own authority."""
    impostor = _Impostor()
    foreign = Authority(rig.folder / "foreign").files("node", node_dns_name(OTHER))
    for shown, why in (
        (rig.security(NODE), f"the server is not trusted: its certificate is not for {node_dns_name(OTHER)}"),
        (
            TransportSecurity(TlsIdentity(foreign.certificate, foreign.key, foreign.authority)),
            "the server is not trusted: its certificate is of an authority that grpc_ca_file does not hold",
        ),
    ):
        async with transport.serve(impostor.register, security=shown) as address:
            await rig.says_it_is_at(OTHER, address)
            # The answer for a person who asks for the node, and the log line, once.
            sentence = f"node {OTHER!r} was never pulled: {address}: {why}"

            async def told(sentence: str = sentence) -> bool:
                return await _health_of(OTHER, rig, serving) == sentence

            await until(told, sentence)
            lines = [json.loads(line) for line in logged().splitlines() if address in line]
            found = [(line["level"], line["event"], line["node"], line["why"]) for line in lines]
            assert found == [("warning", "an agent cannot be pulled", OTHER, why)]
    assert impostor.asked == 0


async def _health_of(node: NodeName, rig: Rig, serving: str) -> str:
    whom = {"security": rig.security("operator"), "server_name": dns_name(Caller.INVENTORY)}
    async with transport.channel(serving, **whom) as channel:
        try:
            await InventoryServiceStub(channel).GetNode(inventory_pb2.GetNodeRequest(node=node))
        except grpc.aio.AioRpcError as error:
            return error.details() or ""
    return ""


@pytest.mark.slow
async def test_who_cannot_be_who_he_should_be_does_not_start(rig: Rig) -> None:
    """One sentence at the start, instead of a node that is stale for a reason on another machine."""
    fleet = rig.folder / "fleet.toml"
    fleet.write_text(FLEET)
    ended = Authority(rig.folder / "ended").files("inventory", dns_name(Caller.INVENTORY), age_days=1000)
    open_port = {"SLUICE_INVENTORY_GRPC_ADDRESS": f"0.0.0.0:{rig.ports['serving']}"}
    outcomes = await asyncio.gather(
        rig.ended("node_agent", rig.files(OTHER), SLUICE_NODE_AGENT_FLEET_FILE=str(fleet)),
        rig.ended("inventory", ended),
        rig.ended("inventory", None, **open_port),
    )
    sentences = (
        f"must be for {node_dns_name(NODE)}, and is for {node_dns_name(OTHER)}",
        f"grpc_certificate_file: the certificate in {ended.certificate} has expired; renew it",
        f"gRPC at {open_port['SLUICE_INVENTORY_GRPC_ADDRESS']} would be plain text beyond this machine",
    )
    for (code, text), sentence in zip(outcomes, sentences, strict=True):
        assert (code, sentence in text, "Traceback" in text) == (78, True, False), text
