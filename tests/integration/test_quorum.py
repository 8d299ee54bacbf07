"""A cluster of brokers without a quorum: connected, and no write succeeds. Log, metrics and doctor name the cause."""

import asyncio
import json
from pathlib import Path

import pytest
from factories.broker.bus_rigs import ensured
from factories.broker.nats_server import Broker
from factories.waiting import until
from factories.words import write_of
from structlog.testing import capture_logs

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Stream, Write, WriteAccepted, WriteUnknown
from sluice.contracts.ids import RunId
from sluice.contracts.messages import LeaseHeld
from sluice.runtime.bus import BusError
from sluice.runtime.nats import broker_liveness
from sluice.runtime.nats.connection import Connection
from sluice.runtime.nats.jetstream_bus import NatsBus
from sluice.runtime.prometheus import metrics
from sluice.runtime.prometheus.runtime_metrics import SILENT
from sluice_console.shell.doctor.doctor import DoctorOptions, doctor
from sluice_console.shell.operate import streams

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
LOST_QUORUM_S, ELECTION_S, ROUNDS = 10.0, 9.0, 4
"""
Of nats-server (raft.go): a leader steps down after so long without a majority, and a round of an election takes 4 to 9
s. On a busy machine a round may fail.
"""
WITHIN_S = LOST_QUORUM_S + 2 * ROUNDS * ELECTION_S
"""The servers elect a leader of the cluster first, and then one of each stream."""


def write(number: int, expected: int) -> Write:
    address = subjects.lease("allocator")
    return write_of(address, LeaseHeld(role="allocator", owner=RunId("r")), expected, f"r-{number}")


async def is_replicated(connection: Connection) -> bool:
    """Whether every server has all of each stream: two of three that are killed before that may elect no leader."""
    found = [await connection.ask(f"STREAM.INFO.{stream.name}") for stream in Stream]
    return all(replica["current"] for each in found for replica in each["cluster"]["replicas"])


def silent_s() -> float:
    return sum(metrics.PROCESS.samples().get(SILENT, {}).values())


async def findings(url: str, capsys) -> list[dict[str, str]]:
    capsys.readouterr()
    options = DoctorOptions(server=url, bus=True, inventory="", kubeconfig=None, in_cluster=False, cluster=False)
    await doctor(options, form="json")
    return json.loads(capsys.readouterr().out)["findings"]


async def test_a_broker_without_quorum_is_named_in_log_metrics_and_doctor(tmp_path: Path, monkeypatch, capsys):
    """Two of three servers are killed: the operator on call learns to bring them back, not to look elsewhere."""
    monkeypatch.setattr(broker_liveness, "REPORT_AFTER_S", 0.5)
    with capture_logs() as lines:
        async with Broker(tmp_path, size=3) as broker:
            bus = await NatsBus.connect(broker.url, name="service")
            try:
                await ensured(bus)
                accepted = await bus.write(write(1, 0), {})
                assert isinstance(accepted, WriteAccepted), accepted
                assert silent_s() == 0
                connection = await Connection.open(broker.url, name="probe")
                await until(lambda: is_replicated(connection), within_s=WITHIN_S)
                await connection.close()
                for server in broker.servers[1:]:
                    await server.kill()
                number = 2
                async with asyncio.timeout(WITHIN_S):
                    while not [line for line in lines if "answers no write" in line["event"]]:
                        answer = await bus.write(write(number, accepted.sequence), {})
                        assert isinstance(answer, WriteUnknown), answer
                        number += 1
                (told,) = [line for line in lines if "answers no write" in line["event"]]
                assert told["log_level"] == "error"
                assert "two of three" in told["remedy"]
                assert silent_s() > 0
                (found,) = await findings(broker.servers[0].url, capsys)
                assert (found["check"], found["level"]) == ("broker", "problem"), found
                assert "too few servers" in found["what"]
                assert "two of three" in found["remedy"]
                await broker.servers[1].start()
                async with asyncio.timeout(WITHIN_S):
                    while isinstance(await bus.write(write(number, accepted.sequence), {}), WriteUnknown):
                        number += 1
                assert silent_s() == 0
                assert [line for line in lines if line["event"] == "the broker answers writes again"]
            finally:
                await bus.close()
                for server in broker.servers:
                    await server.kill()  # asked to stop, the rest would wait for the others


async def test_streams_that_too_few_servers_can_declare_are_refused_in_a_sentence(tmp_path: Path, monkeypatch):
    """An operator who sets up a cluster would see a traceback, and look for the error in Sluice."""
    monkeypatch.setattr(streams, "WITHIN_S", 2.0)
    async with Broker(tmp_path, size=3) as broker:
        for server in broker.servers[1:]:
            await server.kill()
        try:
            with pytest.raises(BusError, match="two of three"):
                await streams.ensure(broker.servers[0].url)
        finally:
            await broker.servers[0].kill()  # asked to stop, it would wait for the others
