"""
What a system is rebuilt from (PROTOCOL §6): the broker's disk, an agent's journal and the API server are lost, each
alone and in pairs, while pods run and requests pour in. It returns by itself to ledger = hardware = pods.

Ledger and journal are each other's copy of whose an instance is. Where both are lost in one moment the tickets tell.

All three are read as they are: the stream with a plain client, the machine's file, and what the fake's kubelets started
containers with. The outages are as long as a test may wait; in `tests/simulation/schedules/test_rebuild.py` they last
minutes.
"""

import asyncio
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import nats.errors
import pytest
from factories.cluster.scenes import Scene, user_pod
from factories.system import words_at
from judges.agreement import Runs, disagreements

from sluice.contracts.kube.names import ENV_VISIBLE_DEVICES

NODES = ("gpu-a", "gpu-b")
WIPED, FORGOTTEN, UNREACHABLE = "broker wiped", "journal lost", "API server unreachable"
CASES = [(WIPED,), (FORGOTTEN,), (UNREACHABLE,), (FORGOTTEN, WIPED), (WIPED, UNREACHABLE), (FORGOTTEN, UNREACHABLE)]
AWAY_S = 1.0
RESYNC_S = "3"
"""An orphaned slice is released when its source has listed again (after 300 s by default)."""
SYSTEM = {"agents": 2, "others": {"SLUICE_ALLOCATOR_ORPHAN_GRACE_S": "2"}, "watcher": {"RESYNC_S": RESYNC_S}}
"""Each node has an agent, so that one can forget alone."""
RECOVERED_WITHIN_S = 90.0
"""A wiped broker is back within 30 s; this also waits for pods on a busy machine."""
POURING = 5
PROFILES = ("1g.5gb", "2g.10gb", "1g.5gb")


@dataclass
class Losses:
    """What is lost, and what brings back what can be brought back."""

    scene: Scene
    mended: list[Callable[[], None]] = field(default_factory=list)

    def lose(self, what: str) -> None:
        """A disk is gone, or a server does not answer."""
        {WIPED: self._broker, FORGOTTEN: self._journal, UNREACHABLE: self._api_server}[what]()

    def mend(self) -> None:
        """Processes are started again as a supervisor does; the API server is reached again."""
        mended, self.mended = self.mended, []
        for each in mended:
            each()

    def _broker(self) -> None:
        broker = self.scene.system.process("broker")
        broker.kill()
        shutil.rmtree(self.scene.system.data / "nats")
        self.mended.append(broker.start)

    def _journal(self) -> None:
        agent = self.scene.system.agent_of(NODES[0])
        agent.kill()
        (self.scene.system.data / "agents" / NODES[0] / "journal").unlink()
        self.mended.append(agent.start)

    def _api_server(self) -> None:
        faults = self.scene.fake("a switch to be unreachable").faults
        faults.away(on=True)
        self.mended.append(lambda: faults.away(on=False))


async def apply(scene: Scene, prefix: str, count: int) -> list[str]:
    names = [f"{prefix}-{number}" for number in range(count)]
    for number, name in enumerate(names):
        await scene.apply(user_pod(name, annotations={"sluice.dev/profile": PROFILES[number % len(PROFILES)]}))
    return names


async def differences(scene: Scene, names: list[str]) -> list[str]:
    """What ledger, hardware and the containers of exactly these pods do not agree on."""
    data, fake = scene.system.data, scene.fake("its kubelets")
    try:
        ledger = await words_at(scene.system.url, "BOOK", "sluice.ledger.>")
    except nats.errors.Error as error:
        return [f"the ledger cannot be read: {error}"]
    machines = [json.loads((data / "hardware" / f"{node}.json").read_text().split("\n")[-2]) for node in NODES]
    pods = await scene.pods()
    nodes = {each["metadata"]["uid"]: each["spec"].get("nodeName", "") for each in pods.values()}
    started = {uid: each["main"] for uid, each in list(fake.nodes.running.items()) if "main" in each}
    runs = {
        uid: Runs(nodes.get(uid, "gone"), frozenset(environment[ENV_VISIBLE_DEVICES].split(",")))
        for uid, environment in started.items()
    }
    missing = sorted(set(names) - {name for name, each in pods.items() if each["metadata"]["uid"] in runs})
    return [*disagreements(ledger, machines, runs), *(f"{name} does not run" for name in missing)]


async def agree(scene: Scene, names: list[str]) -> None:
    """Wait until all three agree, twice in a row."""
    deadline, found, calm = time.monotonic() + RECOVERED_WITHIN_S, [""], 0
    while calm < 2:
        found = await differences(scene, names)
        calm = 0 if found else calm + 1
        assert time.monotonic() < deadline, f"{found}\n{scene.system.said()}"
        scene.fake("its kubelets").nodes.poke()
        await asyncio.sleep(0.3)


@pytest.mark.slow
@pytest.mark.parametrize("lost", CASES, ids=" and ".join)
async def test_the_system_finds_its_way_back_to_what_runs(scene: Scene, lost: tuple[str, ...]) -> None:
    """Running pods would lose their slices or share them; those of ended pods would stay forever."""
    kept = await apply(scene, "kept", 3)
    leaving = await apply(scene, "leaving", 2)
    await scene.started(len(kept) + len(leaving))
    await agree(scene, [*kept, *leaving])
    starts = dict(scene.fake("its kubelets").nodes.starts)
    # requests pour in before, while and after
    pouring = await apply(scene, "before", POURING)
    await scene.delete(leaving[0])
    losses = Losses(scene)
    try:
        for what in lost:
            losses.lose(what)
        if UNREACHABLE not in lost:
            pouring += await apply(scene, "while", POURING)
            await scene.delete(leaving[1])
        await asyncio.sleep(AWAY_S)
    finally:
        losses.mend()
    pouring += await apply(scene, "after", POURING)
    await scene.delete(*leaving)
    await agree(scene, [*kept, *pouring])
    after = dict(scene.fake("its kubelets").nodes.starts)
    assert {key: after[key] for key in starts} == starts, "a container that ran was started again"
