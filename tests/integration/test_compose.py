"""The composed system on one machine, as without a cluster; skips without `factories.images` and compose plugin."""

import json
import os
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from factories.images import BUILD_S, ROOT, build_image, docker, remove_image, why_not
from factories.waiting import wait_until

from sluice.runtime.nats_server.free_ports import free_ports

SERVICES = ("allocator", "inventory", "node-agent", "pod-watcher", "console", "broker")
UP_S = 120


def why_not_composed() -> str:
    if why := why_not():
        return why
    return "" if docker("compose", "version").returncode == 0 else "docker has no compose plugin"


WHY_NOT = why_not_composed()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT),
    pytest.mark.timeout(len(SERVICES) * BUILD_S),
]


class Composed:
    """The system of compose.yaml under a name of its own."""

    def __init__(self, pods: Path, images: dict[str, str]) -> None:
        self.pods = pods
        nats, inventory, self.page = free_ports(3)
        names = {f"SLUICE_{name.upper().replace('-', '_')}_IMAGE": image for name, image in images.items()}
        self._environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("SLUICE_", "COMPOSE_"))},
            **names,
            "SLUICE_NATS_IMAGE": images["broker"],
            "SLUICE_PODS": str(pods),
            "SLUICE_NATS_PORT": str(nats),
            "SLUICE_INVENTORY_PORT": str(inventory),
            "SLUICE_WEB_PORT": str(self.page),
        }
        self._project = f"sluice-test-{os.getpid()}"

    def compose(self, *words: str, limit_s: float = UP_S) -> subprocess.CompletedProcess[str]:
        file = ROOT / "deploy" / "compose" / "compose.yaml"
        return subprocess.run(
            ["docker", "compose", "--file", file, "--project-name", self._project, *words],
            env=self._environment, capture_output=True, text=True, timeout=limit_s, check=False,
        )  # fmt: skip

    def up(self) -> None:
        """Start what is not running."""
        done = self.compose("up", "--detach")
        assert done.returncode == 0, done.stderr

    def states(self) -> dict[str, str]:
        done = self.compose("run", "--rm", "--no-deps", "console", "pods", "--json")
        return {pod["name"]: pod["state"] for pod in json.loads(done.stdout)["pods"]} if done.returncode == 0 else {}

    def owners_on_the_page(self) -> set[str]:
        """The owners on the page's GPUs; empty while it does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.page}/api/map", timeout=UP_S) as answer:
                gpus = json.load(answer)["gpus"].values()
        except OSError:
            return set()
        return {slot["owner"] for gpu in gpus for slot in gpu["slots"]}

    def until(self, there: Callable[[dict[str, str]], bool]) -> None:
        wait_until(
            lambda: there(self.states()), lambda: f"{self.states()}\n{self.compose('logs', '--tail', '20').stdout}"
        )


@pytest.fixture
def composed(tmp_path: Path) -> Iterator[Composed]:
    """All of it, running; stopped and removed with its volumes and images."""
    pods = tmp_path / "pods"
    pods.mkdir()
    for each in (tmp_path, pods):
        each.chmod(0o755)
    images: dict[str, str] = {}
    try:
        for name in SERVICES:
            images[name] = build_image(name, f"test-compose-{os.getpid()}")
        system = Composed(pods, images)
        try:
            system.up()
            yield system
        finally:
            system.compose("down", "--volumes", "--timeout", "5")
    finally:
        for image in images.values():
            remove_image(image)


def test_a_manifest_in_the_folder_gets_its_slice_also_when_the_broker_dies(composed: Composed) -> None:
    """Bound; still bound after the broker was killed, from its volume; and gone when the file is gone."""
    (composed.pods / "pod.yaml").write_bytes((ROOT / "examples" / "02-by-profile.yaml").read_bytes())
    composed.until(
        lambda states: states == {"by-profile": "bound"} and "default/by-profile" in composed.owners_on_the_page()
    )
    assert composed.compose("kill", "--signal", "KILL", "nats").returncode == 0
    composed.up()
    (composed.pods / "another.yaml").write_bytes((ROOT / "examples" / "03-by-memory.yaml").read_bytes())
    composed.until(lambda states: len(states) == 2 and set(states.values()) == {"bound"})
    for each in composed.pods.iterdir():
        each.unlink()
    composed.until(lambda states: states == {})
    running = composed.compose("ps", "--format", "{{.Service}}").stdout.split()
    assert set(running) == {"nats", "allocator", "inventory", "node-agent", "pod-watcher", "web"}
