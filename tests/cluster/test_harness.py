"""The cluster itself: what a user of any cluster takes for granted must hold, or no other suite means anything."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cluster.harness import cgroups
from cluster.harness import cluster as clusters
from cluster.harness.cluster import Cluster

TESTS = Path(__file__).parent.parent
LEFT_BEHIND = """
import sys
from cluster.harness import cluster as clusters
print(clusters.start(sys.argv[1], workers=0).folder, flush=True)
sys.stdin.read()
"""
ASK_DNS = """
import socket, sys
names = b"".join(bytes([len(part)]) + part.encode() for part in sys.argv[1].split("."))
asking = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
asking.settimeout(5)
asking.connect(("10.96.0.10", 53))
for attempt in range(6):  # a packet may be lost: every resolver asks again
    asking.send(b"\\x12\\x34\\x01\\x00\\x00\\x01" + bytes(6) + names + b"\\x00\\x00\\x01\\x00\\x01")
    try:
        print(socket.inet_ntoa(asking.recv(512)[-4:]))
        break
    except TimeoutError:
        continue
"""


def test_every_machine_is_ready_and_runs_the_asked_version(cluster: Cluster) -> None:
    """A suite that says 1.37 and ran on something else proves nothing."""
    nodes = json.loads(cluster.kubectl("get", "nodes", "--output=json"))["items"]
    assert [each["metadata"]["name"] for each in nodes] == ["control-plane", "worker-1", "worker-2"]
    for node in nodes:
        ready = next(each for each in node["status"]["conditions"] if each["type"] == "Ready")
        assert ready["status"] == "True"
        assert node["status"]["nodeInfo"]["kubeletVersion"].startswith(f"v{cluster.minor}.")


def test_a_service_of_another_machine_answers(cluster: Cluster) -> None:
    """Without it Sluice's services could not find the broker: the name server's pod is behind a Service too."""
    said = cluster.node("worker-2").box.run(sys.executable, "-c", ASK_DNS, "kubernetes.default.svc.cluster.local")
    assert said.strip() == "10.96.0.1"


@pytest.mark.cluster
def test_nothing_is_left_of_a_cluster_whose_owner_was_killed() -> None:
    """A developer's machine fills with kubelets, mounts and cgroups otherwise."""
    if why := clusters.why_impossible():
        pytest.skip(why)
    name = f"orphan-{os.getpid()}"
    with subprocess.Popen(
        [sys.executable, "-c", LEFT_BEHIND, name],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        folder = Path(owner.stdout.readline().strip())
        assert folder.name == name
        boxes = json.loads((folder / "state.json").read_text())["boxes"]
        owner.send_signal(signal.SIGKILL)
        owner.wait(timeout=10)
    clusters.sweep()
    assert not folder.exists()
    assert not [box for box in boxes.values() if Path(f"/proc/{box['init'][0]}").exists()]
    assert not [path for path in cgroups.ROOT.glob(f"**/sluice-{name}-*") if path.is_dir()]
    assert name not in Path("/proc/mounts").read_text()
