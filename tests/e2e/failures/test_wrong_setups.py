"""Wrong set-ups of a node, as a person meets them: real agents, each telling one clear sentence, never a traceback."""

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from factories.agent_driver import AgentDriver, kill, short_folder, start_agent
from factories.broker.nats_server import Broker
from factories.gpus.nvml import ALWAYS, NvmlMachine, child_environment, has_a_driver
from factories.processes import own_environment

from sluice.contracts.bus import subjects
from sluice.contracts.fleet_file.fleet_spec import parse_fleet
from sluice.contracts.ids import AllocationId, NodeName
from sluice.contracts.messages import SliceFailed
from sluice.runtime.nats.jetstream_bus import NatsBus
from sluice.runtime.service import EXIT_CONFIG
from sluice_node_agent.shell.journal.journal import Journal
from sluice_node_agent.shell.paths import agent_directory

NODE = NodeName("n1")
FLEET = '[[node]]\nname = "n1"\ngpus = [{ model = "a100-40gb", count = 1 }]\n'
ENDS_WITHIN_S = 60.0
DRIVER_NOT_LOADED, NO_PERMISSION, LIB_RM_VERSION_MISMATCH = 9, 4, 18
"""NVML return codes."""


@pytest.fixture
def data():
    """A data folder whose path leaves room for sockets, with a fleet file beside it."""
    with short_folder() as folder:
        (folder / "fleet.toml").write_text(FLEET)
        (folder / "data").mkdir()
        yield folder / "data"


@pytest.fixture
def machine(nvml_library, tmp_path, data):
    """A real node, by all that the agent can see: one A100 behind our own NVML library."""
    made = NvmlMachine(nvml_library, tmp_path, state=tmp_path / "gpus")
    made.add_fleet(parse_fleet(FLEET, origin="test").nodes[0])
    return made


def environment(data: Path, **variables: object) -> dict[str, str]:
    """Without the settings of the person who runs the tests, and without a broker, which no error needs."""
    told = {name: str(value) for name, value in variables.items()}
    return own_environment() | {"SLUICE_DATA_DIR": str(data), "SLUICE_LOG_FORMAT": "json"} | told


def run(variables: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    """Run the agent, or one of its commands, to its end."""
    done = subprocess.run(
        [sys.executable, "-m", "sluice_node_agent", *words],
        env=variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=ENDS_WITHIN_S,
        check=False,
    )
    assert "Traceback" not in done.stderr + done.stdout, done.stderr
    return done


def refused(variables: dict[str, str]) -> str:
    """The only error that an agent reports, which ends for its supervisor to start it again."""
    ended = run(variables)
    assert ended.returncode == EXIT_CONFIG
    lines = [json.loads(line) for line in ended.stderr.splitlines()]
    (wrong,) = [line["event"] for line in lines if line["level"] not in {"debug", "info"}]
    return wrong


def simulated(data: Path, **variables: object) -> dict[str, str]:
    return environment(data, SLUICE_NODE_AGENT_FLEET_FILE=data.parent / "fleet.toml", **variables)


def real(data: Path, machine: NvmlMachine, **variables: object) -> dict[str, str]:
    found = environment(data, SLUICE_NODE_AGENT_NODES=NODE, **variables)
    return (
        found
        | {name: value for name, value in child_environment(machine).items() if name not in os.environ}
        | {"LD_LIBRARY_PATH": machine.environment()["LD_LIBRARY_PATH"]}
    )


def problems(variables: dict[str, str]) -> dict[str, str]:
    """The errors of `check`."""
    ended = run(variables, "check", "--json")
    assert ended.stderr == ""
    told = json.loads(ended.stdout)
    found = {finding["check"]: finding["what"] for finding in told["findings"] if finding["level"] == "problem"}
    assert ended.returncode == (1 if found else 0)
    return found


# -- the driver ---------------------------------------------------------------------------------------------------


@pytest.mark.skipif(has_a_driver(), reason="this machine has an NVIDIA driver")
def test_no_driver(data):
    """The agent ends, for its supervisor to start it again; the check says what to install."""
    variables = environment(data, SLUICE_NODE_AGENT_NODES=NODE)
    assert "libnvidia-ml.so.1 was not found" in refused(variables)
    assert {"driver", "library"} <= set(problems(variables))


@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [
        ("init_error", DRIVER_NOT_LOADED, "the NVIDIA driver is not loaded"),
        ("init_error", NO_PERMISSION, "no permission"),
        ("init_error", LIB_RM_VERSION_MISMATCH, "of different versions"),
        ("no_permission", ALWAYS, "no permission"),
    ],
)
def test_a_driver_that_does_not_let_the_agent_in(data, machine, fault, code, words):
    """Not loaded, not allowed, upgraded without a reboot; or it shows no instances, which must be known before."""
    machine.fault(fault, code)
    assert words in refused(real(data, machine))
    assert words in problems(real(data, machine))["library"]


def test_the_node_must_be_named(data, machine):
    """Under a wrong name the agent would serve another node's ledger."""
    unnamed = {name: value for name, value in real(data, machine).items() if name != "SLUICE_NODE_AGENT_NODES"}
    assert "SLUICE_NODE_AGENT_NODES" in refused(unnamed)


# -- GPUs ---------------------------------------------------------------------------------------------------------


class NvmlDesk(AgentDriver):
    """Stands in for allocator and inventory, where GPUs are NVML's."""

    machine: NvmlMachine

    def uuids(self, node):
        with self.machine.loaded():
            from sluice_node_agent.device.nvml.backend import NvmlBackend  # noqa: PLC0415 - after the library is there

            with closing(NvmlBackend(self.machine.processes)) as gpus:
                return [report.uuid for report in gpus.read()]


async def told_by_agent(data: Path, variables: dict[str, str], order) -> dict:
    """Run an agent with a broker, order something of it, and return what `show` prints then."""
    async with Broker(data.parent / "nats") as broker:
        bus = await NatsBus.connect(broker.url, name="desk")
        await bus.ensure_streams()
        process = await start_agent(data, **variables, SLUICE_NATS_URL=broker.url, SLUICE_NODE_AGENT_TICK_S=0.05)
        try:
            await order(bus)
            ended = run(variables, "show", "--json")
            assert ended.returncode == 0, ended.stderr
            return json.loads(ended.stdout)
        finally:
            await kill(process)
            await bus.close()


async def test_mig_pending_a_reset_and_no_mps(data, machine, tmp_path):
    """The node serves what it can: the GPU is unhealthy with its reason, and no shares are offered."""
    machine.set_mig(0, current=True, pending=False)
    (tmp_path / "bin").mkdir()
    variables = real(data, machine, PATH=tmp_path / "bin")

    async def order(bus):
        await NvmlDesk(bus, data).open(NODE)

    said = await told_by_agent(data, variables, order)
    assert said["source"] == "agent"
    assert (said["gpus"][0]["state"], said["modes"]) == ("unhealthy", ["exclusive"])
    assert "MIG" in said["gpus"][0]["message"]
    log = (data / "agent.log").read_text()
    assert "nvidia-cuda-mps-control is not on PATH" in log
    assert "Traceback" not in log
    assert "MIG" in problems(variables)["gpus"]


async def test_no_permission_to_create_instances(data, machine):
    """The slice fails with the sentence that says what right is missing; the agent goes on."""
    machine.fail("nvmlDeviceCreateGpuInstanceWithPlacement", NO_PERMISSION, ALWAYS)

    async def order(bus):
        desk = NvmlDesk(bus, data)
        desk.machine = machine
        await desk.open(NODE)
        await desk.grant(NODE, "a1", (0, "1g.5gb", 0, 1))
        address = subjects.slice_(NODE, AllocationId("a1"))
        word = await desk.until(address, lambda word: isinstance(word, SliceFailed))
        assert "no permission" in word.message

    assert (await told_by_agent(data, real(data, machine), order))["gpus"][0]["instances"] == []
    assert "Traceback" not in (data / "agent.log").read_text()


# -- journal and directories --------------------------------------------------------------------------------------


def test_a_journal_of_another_node(data):
    """A data folder that was copied: its slices are another machine's."""
    Journal(agent_directory(data, NodeName("n2")), NodeName("n2")).close()
    agent_directory(data, NodeName("n2")).rename(agent_directory(data, NODE))
    before = (agent_directory(data, NODE) / "journal").read_bytes()
    assert "is the journal of node n2, not of n1" in refused(simulated(data))
    assert "is the journal of node n2, not of n1" in problems(simulated(data))["journal"]
    assert (agent_directory(data, NODE) / "journal").read_bytes() == before


def test_a_data_folder_that_cannot_be_written(data):
    """Without a journal nothing may be done to a device."""
    (data / "agents").write_text("")
    assert str(data / "agents") in refused(simulated(data))
    assert f"{data / 'agents'} is no directory" in problems(simulated(data))["directories"]
