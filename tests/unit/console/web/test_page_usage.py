"""What the page asks agents: no more than somebody has to know, however many look."""

import asyncio
from collections.abc import Mapping

from sluice.contracts.ids import AllocationId, GpuUuid, NodeName, RequestId
from sluice.contracts.slice_usage import NodeUsage, SliceUsage
from sluice_console.core.documents import PodDocument
from sluice_console.shell.web.usage import COUNTS_FOR_S, KEPT_MAX, Usages


def pod(request: str, node: str = "gpu-1") -> PodDocument:
    facts = {"namespace": "a", "name": request, "origin": "", "source": "s", "message": "", "revision": 1}
    return PodDocument(request=request, state="bound", node=node, **facts)


def used(request: str, idle_s: float | None = None) -> SliceUsage:
    return SliceUsage(
        allocation=AllocationId(f"a-{request}"),
        request=RequestId(request),
        namespace="a",
        name=request,
        containers=("main",),
        gpu=GpuUuid("GPU-1"),
        device="MIG-1",
        profile="1g.5gb",
        mode="exclusive",
        memory_mib=4864,
        busy_percent=5.0,
        age_s=1.0,
        idle_s=idle_s,
    )


class Agents:
    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.now = 100.0

    async def ask(self, endpoints: Mapping[str, str]) -> dict[str, NodeUsage | str]:
        """Two pods are on each node; one node does not answer."""
        self.asked += endpoints.items()
        await asyncio.sleep(0)
        both = (used("one"), used("two", idle_s=7200.0))
        found = {node: NodeUsage(node=NodeName(node), every_s=30.0, slices=both) for node in endpoints}
        return found | {node: "UNAVAILABLE: no server is there" for node in endpoints if node == "gone"}


async def test_an_answer_counts_for_some_seconds_for_everybody_who_looks():
    """A page left open by a hundred people would ask an agent all day."""
    agents = Agents()
    usages = Usages(agents.ask, lambda: agents.now)
    found = await asyncio.gather(*(usages.of(pod(name), "host:1") for name in ("one", "two") * 50))
    assert agents.asked == [("gpu-1", "host:1")]
    assert [[each.request for each in document.slices] for document in found[:2]] == [["one"], ["two"]]
    agents.now += COUNTS_FOR_S
    await usages.of(pod("one"), "host:1")
    assert len(agents.asked) == 2


async def test_an_agent_that_does_not_answer_is_said_to():
    """Its pods would look as if they did nothing."""
    agents = Agents()
    document = await Usages(agents.ask, lambda: agents.now).of(pod("one", "gone"), "host:1")
    assert (document.slices, document.silent) == ((), {"gone": "UNAVAILABLE: no server is there"})


async def test_answers_of_nodes_without_end_do_not_fill_the_memory():
    """A server that runs for months has seen every node there ever was."""
    agents = Agents()
    usages = Usages(agents.ask, lambda: agents.now)
    for number in range(KEPT_MAX + 10):
        await usages.of(pod("one", f"gpu-{number}"), "host:1")
    assert len(usages._nodes) == KEPT_MAX
    assert not usages._nodes._asking


async def test_what_is_idle_is_asked_of_all_agents_once_a_minute():
    """Every open page wants it."""
    agents = Agents()
    usages = Usages(agents.ask, lambda: agents.now)
    endpoints = {"gpu-1": "host:1", "gone": "host:2"}
    found, _ = await asyncio.gather(usages.idle(endpoints), usages.idle(endpoints))
    assert ([each.request for each in found.slices], list(found.silent)) == (["two"], ["gone"])
    assert len(agents.asked) == 2
