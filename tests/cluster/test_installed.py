"""What a user sees within a minute of the installation: a pod runs, and kubectl shows its slice."""

import json

from cluster.harness.cluster import Cluster

POD = """
apiVersion: v1
kind: Pod
metadata: {name: first, annotations: {sluice.dev/profile: 1g.5gb}}
spec:
  restartPolicy: Never
  containers:
    - name: main
      image: localhost/sluice-test:1
      command: [sh, -c, "echo $NVIDIA_VISIBLE_DEVICES; grep -c /run/sluice/slice /proc/self/mountinfo; exec sleep 60"]
"""


def test_the_first_pod_runs_on_the_slice_that_its_event_names(installed: Cluster, namespace: str) -> None:
    """The promise of the README: say what you need, and the pod starts with it."""
    installed.kubectl(f"--namespace={namespace}", "apply", "--filename=-", stdin=POD)
    installed.kubectl(
        f"--namespace={namespace}", "wait", "--for=condition=Ready", "pod/first", "--timeout=60s", timeout_s=70
    )
    device, mounts = installed.kubectl(f"--namespace={namespace}", "logs", "first").split()
    assert device.startswith("MIG-")
    assert mounts == "1"
    assert f"main: {device}" in installed.kubectl(f"--namespace={namespace}", "describe", "pod", "first")
    node = json.loads(installed.kubectl(f"--namespace={namespace}", "get", "pod", "first", "--output=json"))["spec"][
        "nodeName"
    ]
    used = installed.kubectl("get", "gpus", "--no-headers", "--output=custom-columns=:.status.node,:.status.used")
    assert node in used
