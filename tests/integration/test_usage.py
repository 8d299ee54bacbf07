"""Usage of slices, from the device to the client: a real agent process's parts, real gRPC."""

import json

import pytest
from factories.agent_driver import running
from factories.waiting import until
from factories.web_page import asked, page

from sluice.contracts.bus import subjects
from sluice.contracts.ids import Incarnation, NodeName
from sluice.contracts.messages import AgentAddress, Grant
from sluice.contracts.slice_usage import NodeUsage
from sluice.runtime.grpc.security import LOOPBACK
from sluice.runtime.grpc.usage_client import ask_agents
from sluice_console.core.fleet.usage import usages_document
from sluice_node_agent.settings import NodeAgentSettings
from sluice_node_agent.shell.commands.hardware_command import change_hardware

N1 = NodeName("n1.example")
FLEET = '[[node]]\nname = "n1.example"\ngpus = [{ model = "NVIDIA H100 80GB HBM3", count = 1 }]\n'


@pytest.fixture
def settings(tmp_path):
    (tmp_path / "fleet.toml").write_text(FLEET)
    return NodeAgentSettings(data_dir=tmp_path, fleet_file=tmp_path / "fleet.toml", tick_s=0.05, usage_every_s=0.2)


async def _usage(endpoint):
    """What the agent says, once it has looked at both slices for a while."""
    (answer,) = (await ask_agents({N1: AgentAddress(endpoint)}, LOOPBACK)).values()
    if not isinstance(answer, NodeUsage) or {each.busy_percent for each in answer.slices} != {60.0, 0.0}:
        return None
    return answer if answer.slices[1].idle_s else None


async def test_who_asks_is_told_what_a_slice_is_used_for(settings, capsys):
    """Any claim of its owner would have to be trusted, and an idle slice would go unnoticed."""
    async with running(settings) as desk:
        news = await desk.open(N1)
        await desk.grant(N1, "a1", (0, "3g.40gb", 4, 4))
        booking = await desk.grant(N1, "a2", (0, "1g.10gb", 0, 1))
        one, two = [(await desk.ready(N1, name)).devices[0].uuid for name in ("a1", "a2")]
        command = ["hardware", "--data", str(settings.data_dir), N1, "start-process", one]
        assert change_hardware([*command, "--memory-mib", "700", "--busy-percent", "60"]) == 0
        answer = await until(lambda: _usage(news.endpoint))
        capsys.readouterr()
        await _shown_on_the_page(news, booking, two)
    found = {each.device: each for each in answer.slices}
    assert (found[one].memory_used_mib, found[one].idle_s, found[one].processes) == (700, None, 1)
    assert (found[two].memory_used_mib, found[two].processes) == (0, 0)
    assert answer.every_s == 0.2
    idle = usages_document({N1: answer}, {}, idle_s=0.0)
    assert [each.device for each in idle.slices] == [two]
    (silent,) = (await ask_agents({N1: news.address}, LOOPBACK)).values()
    assert isinstance(silent, str)
    assert "UNAVAILABLE" in silent


async def _shown_on_the_page(news, booking, device) -> None:
    """A pod chosen on the page shows its usage, from the agent that its node announced."""
    request = booking.request
    async with page() as here:
        grant = Grant(revision=1, incarnation=Incarnation("1"), booking=booking)
        here.hear({subjects.node(N1).subject: news, subjects.ledger(N1, booking.allocation).subject: grant})
        here.hear({subjects.request(request).subject: asked("default", "pod")})
        status, _, body = await here.ask(f"/api/usage/{request}")
    assert status == 200, body
    assert device in {each["device"] for each in json.loads(body)["slices"]}
