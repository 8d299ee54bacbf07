"""docs/install.md, word for word: what a reader types on their own machine must end with a pod that runs."""

import os
import re
import subprocess

from cluster import product
from cluster.harness.cluster import Cluster

SECTION = re.compile(r"### On your own machine\n.*?```\n(.*?)```", re.DOTALL)
MADE_BY_THE_SUITE = ("make cluster", "export KUBECONFIG=", "make cluster-down")
COMMAND_S = 180


def test_the_commands_of_the_page_run_its_example(installed: Cluster) -> None:
    """A page that does not work is the first thing that a new user sees of Sluice."""
    found = SECTION.search((product.REPOSITORY / "docs/install.md").read_text())
    assert found is not None
    commands = [line for line in found[1].splitlines() if not line.startswith(MADE_BY_THE_SUITE)]
    assert len(commands) == len(found[1].splitlines()) - len(MADE_BY_THE_SUITE)
    environment = {
        **os.environ,
        "KUBECONFIG": str(installed.kubeconfig),
        "PATH": f"{installed.folder / 'bin'}:{os.environ['PATH']}",
    }
    try:
        for command in commands:
            ended = subprocess.run(
                ["sh", "-ec", command],
                cwd=product.REPOSITORY,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=COMMAND_S,
                check=False,
            )
            assert ended.returncode == 0, f"{command}:\n{ended.stdout}"
    finally:
        installed.kubectl("delete", "pod", "by-profile", "--ignore-not-found", "--wait=true", timeout_s=COMMAND_S)
