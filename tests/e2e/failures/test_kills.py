"""Everything is killed in the middle of a run: each pod still ends with exactly one slice, and all is given back."""

import json
import shutil

import pytest
from factories.system import Running, fleet_text, standing, up, violations, wait_for

PODS = 50
RECOVER_S = 60.0


def states(running: Running) -> dict[str, str]:
    """Pod name to state, as `sluice pods` shows; empty while the bus does not answer."""
    done = running.sluice("pods", "--json")
    if done.returncode != 0:
        return {}
    return {pod["name"]: pod["state"] for pod in json.loads(done.stdout)["pods"]}


def instances(running: Running) -> int | None:
    """Instances on all devices, as the inventory has pulled them; None while the bus does not answer."""
    done = running.sluice("gpus", "--json")
    if done.returncode != 0:
        return None
    return sum(len(gpu["instances"]) for gpu in json.loads(done.stdout)["gpus"])


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_no_pod_is_lost_or_doubled_when_every_process_is_killed_in_turn(tmp_path):
    """SIGKILL of the four services and the broker, one after the other, while 50 pods arrive."""
    with up(tmp_path, fleet_text(2, 4), environment={"SLUICE_ALLOCATOR_ORPHAN_GRACE_S": "5"}) as running:
        victims = ["sluice_pod_watcher", "sluice_allocator", "sluice_node_agent", "sluice_inventory", "nats-server"]
        for number in range(PODS):
            running.write(f"pod-{number:02}")
            if number % 10 == 5:
                assert running.kill(victims[number // 10]) >= 1
        wait_for(lambda: list(states(running).values()).count("bound") == PODS, RECOVER_S, running)
        wait_for(lambda: instances(running) == PODS, RECOVER_S, running)
        for number in range(PODS):
            running.remove(f"pod-{number:02}")
            if number % 10 == 5:
                assert running.kill(victims[number // 10]) >= 1
        wait_for(lambda: instances(running) == 0, RECOVER_S, running)
        wait_for(lambda: standing(running).booked == [], RECOVER_S, running)

        assert violations(running, sources_killed=True) == []


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_running_pods_keep_their_slices_when_the_broker_loses_everything(tmp_path):
    """The broker is killed and its store deleted in mid-run; nothing is granted twice, all is empty at the end."""
    with up(tmp_path, fleet_text(2, 2), environment={"SLUICE_ALLOCATOR_ORPHAN_GRACE_S": "5"}) as running:
        for number in range(10):
            running.write(f"before-{number}")
        wait_for(lambda: list(states(running).values()).count("bound") == 10, RECOVER_S, running)
        uuids = devices(running)
        running.write("during-0", profile="2g.10gb")
        for child in running.children("nats-server"):
            child.suspend()
        shutil.rmtree(running.data / "nats" / "store")
        assert running.kill("nats-server") == 1
        for number in range(1, 5):
            running.write(f"during-{number}", profile="2g.10gb")
        wait_for(lambda: list(states(running).values()).count("bound") == 15, RECOVER_S, running)

        after = devices(running)
        assert {name: after[name] for name in uuids} == uuids
        assert violations(running) == []
        for manifest in sorted(running.pods.glob("*.yaml")):
            manifest.unlink()
        wait_for(lambda: instances(running) == 0, RECOVER_S, running)


def devices(running: Running) -> dict[str, str]:
    """Pod name to the UUID of its MIG device, for the pods named before-*."""
    return {
        pod["name"]: pod["containers"][0]["visible_devices"]
        for pod in running.json("pods")["pods"]
        if pod["name"].startswith("before")
    }
