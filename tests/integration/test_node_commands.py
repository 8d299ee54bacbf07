"""The commands on a node against its running agent, and after that agent was killed: real processes and sockets."""

import json
import os
import sys

import pytest
from factories.agent_driver import AgentProcess, running, short_folder
from factories.broker.bus_rigs import broker_and_bus
from factories.processes import finished, own_environment
from factories.system import fleet_text

from sluice.contracts.bus import subjects
from sluice.contracts.ids import AllocationId, NodeName
from sluice.contracts.messages import Share, SliceQuarantined
from sluice_node_agent.settings import NodeAgentSettings
from sluice_node_agent.shell.commands.hardware_command import change_hardware
from sluice_node_agent.shell.paths import hardware_path
from sluice_node_agent.simulated.hardware_file import HardwareFile

NODE = NodeName("n1")
FLEET = fleet_text(1, 2, prefix=NODE)


@pytest.fixture
def data():
    with short_folder() as folder:
        (folder / "fleet.toml").write_text(FLEET)
        yield folder


@pytest.fixture
async def desk(data):
    """A working agent in this process, and its operator. Slices in use are not retried by themselves."""
    settings = NodeAgentSettings(
        data_dir=data, fleet_file=data / "fleet.toml", tick_s=0.05, back_off_first_s=300.0, quarantine_after=1,
        back_off_max_s=600.0,
    )  # fmt: skip
    async with running(settings) as desk:
        await desk.open(NODE)
        yield desk


async def command(data, *words: str) -> tuple[int, str, str]:
    """Run one command as a person does: exit code, stdout, stderr."""
    environment = own_environment() | {"SLUICE_DATA_DIR": str(data)}
    return await finished(sys.executable, "-m", "sluice_node_agent", *words, environment=environment)


async def shown(data) -> dict:
    code, out, err = await command(data, "show", "--json")
    assert code == 0, err
    return json.loads(out)


async def test_show_says_whose_each_instance_is(desk):
    """A person looks here before destroying anything by hand."""
    await desk.grant(NODE, "a1", (0, "3g.20gb", 4, 4))
    word = await desk.ready(NODE, "a1")
    assert change_hardware(["hardware", "--data", str(desk.data_dir), NODE, "create", "1", "1g.5gb", "0"]) == 0
    said = await shown(desk.data_dir)
    assert (said["source"], said["node"], said["problems"]) == ("agent", NODE, [])
    (ours,) = said["gpus"][0]["instances"]
    assert (ours["uuid"], ours["owner"], ours["of"]) == (word.devices[0].uuid, "slice", "a1")
    assert [each["state"] for each in said["slices"]] == ["ready"]
    code, out, _ = await command(desk.data_dir, "show")
    assert code == 0
    assert f"{word.devices[0].uuid}  a1" in out


async def test_show_names_homes_of_shares_and_their_daemons(desk):
    """Which tenants share which device, and which process serves them."""
    share = Share(mode="mps", uid=os.getuid(), memory_mib=1000)
    await desk.grant(NODE, "s1", (0, "1g.5gb", 0, 1), namespace="team", share=share)
    await desk.ready(NODE, "s1")
    said = await shown(desk.data_dir)
    (home,) = said["homes"]
    assert (home["namespace"], home["state"], home["profile"]) == ("team", "ready", "1g.5gb")
    assert home["pid"] > 0
    (instance,) = said["gpus"][0]["instances"]
    assert (instance["owner"], instance["of"]) == ("home", home["home"])


async def test_a_quarantined_slice_is_released_when_its_holder_is_gone(desk, capsys):
    """With a long pause between tries, a person need not wait for the next one."""
    booking = await desk.grant(NODE, "a1", (0, "3g.20gb", 4, 4))
    device = (await desk.ready(NODE, "a1")).devices[0].uuid
    hardware = ["hardware", "--data", str(desk.data_dir), NODE]
    assert change_hardware([*hardware, "start-process", device, "--owner", "pod-a1"]) == 0
    pid = capsys.readouterr().out.split()[-1]
    await desk.revoke(booking)
    await desk.until(subjects.slice_(NODE, AllocationId("a1")), lambda word: isinstance(word, SliceQuarantined))
    code, out, _ = await command(desk.data_dir, "release-quarantine", "a1")
    assert code == 0
    assert "a1" in out
    assert "quarantined" in out
    assert change_hardware([*hardware, "stop-process", pid]) == 0
    code, out, _ = await command(desk.data_dir, "release-quarantine", "a1")
    assert (code, out) == (0, "slice a1 is gone, and its place is free\n")
    await desk.gone(NODE, "a1")
    assert desk.instances(NODE) == []


async def test_what_cannot_be_released_is_told_in_one_sentence(desk):
    """A typo, and a slice that is not held."""
    await desk.grant(NODE, "a1", (0, "3g.20gb", 4, 4))
    await desk.ready(NODE, "a1")
    code, out, err = await command(desk.data_dir, "release-quarantine", "a9")
    assert (code, out, err) == (1, "", "sluice-node-agent: node n1 has no slice 'a9'\n")
    code, out, err = await command(desk.data_dir, "release-quarantine", "a1")
    assert (code, out) == (1, "")
    assert "not quarantined but ready" in err
    code, _, err = await command(desk.data_dir, "release-quarantine", "a1", "--node", "n2")
    assert code == 1
    assert "no agent of node n2 runs here" in err


async def test_a_check_beside_a_running_agent_disturbs_nothing(desk):
    """It takes no lock: otherwise the agent would be refused at its next start."""
    await desk.grant(NODE, "a1", (0, "3g.20gb", 4, 4))
    await desk.ready(NODE, "a1")
    before = desk.instances(NODE)
    code, out, err = await command(desk.data_dir, "check", "--json")
    assert (code, err) == (0, "")
    told = {finding["check"]: finding["what"] for finding in json.loads(out)["findings"]}
    assert told["journal"] == "the journal can be read: 1 slices, 0 homes of shares"
    assert desk.instances(NODE) == before


async def test_a_killed_agents_node_is_shown_from_journal_and_devices(data, tmp_path):
    """When the agent does not come up, the journal is left; its stale socket misleads no command."""
    fleet = {"SLUICE_NODE_AGENT_FLEET_FILE": data / "fleet.toml"}
    async with broker_and_bus(tmp_path) as (broker, bus), AgentProcess(NODE, data, broker, bus, **fleet) as agent:
        await agent.start()
        await agent.grant(NODE, "a1", (1, "1g.5gb", 6, 1))
        word = await agent.ready(NODE, "a1")
        running_says = await shown(data)
        await agent.kill()
        assert (data / "agents" / NODE / "control.sock").exists()
        killed_says = await shown(data)
    assert (running_says["source"], killed_says["source"]) == ("agent", "journal")
    (instance,) = killed_says["gpus"][1]["instances"]
    assert (instance["uuid"], instance["of"]) == (word.devices[0].uuid, "a1")
    assert killed_says["gpus"] == running_says["gpus"]
    assert killed_says["slices"] == running_says["slices"]
    HardwareFile(hardware_path(data, NODE)).reboot()
    assert "rebooted" in (await shown(data))["warnings"][0]
