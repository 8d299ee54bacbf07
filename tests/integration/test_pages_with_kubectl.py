"""The kubectl commands of README.md and of pages for operators, run verbatim with the real kubectl."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import deploy_check
import pytest
from fake_kube.server import FakeKube

ROOT = Path(__file__).resolve().parents[2]
PAGES = {"README.md": 3, "docs/migration.md": 12, "docs/operations.md": 15}
"""With the least number of commands on each."""
NOT_HERE = ("port-forward", "create token", " NAME", " POD")
"""There is no kubelet behind the fake to connect to, it signs no token, and a person fills in a name."""
_BLOCK = re.compile(r"^( *)```\w*\n(.*?)^\1```", re.DOTALL | re.MULTILINE)
_MENTION = re.compile(r"`(kubectl [^`\n]+)`")

pytestmark = [
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on PATH"),
    pytest.mark.slow,
]


def commands(page: str) -> list[str]:
    """Every line of a code block that calls kubectl, and every inline command, in the order of the page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = [
        (block.start(), line.partition(" #")[0].strip())
        for block in _BLOCK.finditer(text)
        for line in block[2].splitlines()
        if "kubectl " in line
    ]
    found += [(mention.start(), mention[1]) for mention in _MENTION.finditer(text) if len(mention[1].split()) > 3]
    typed = [line for _, line in sorted(found, key=lambda each: each[0])]
    return [line for line in typed if not any(word in line for word in NOT_HERE)]


@pytest.mark.parametrize("page", PAGES)
def test_every_command_does_what_it_says(page: str, kube: FakeKube, tmp_path: Path) -> None:
    """A person in trouble, or one who moves a cluster, copies them as they are."""
    typed = commands(page)
    assert len(typed) >= PAGES[page]
    kubeconfig = str(kube.kubeconfig(tmp_path / "config"))
    environment = {"HOME": str(tmp_path), "KUBECONFIG": kubeconfig, "PATH": os.environ["PATH"]}

    def run(line: str, given: str = "") -> None:
        # the fake has no OpenAPI to validate against
        line = line.replace("kubectl apply", "kubectl apply --validate=false")
        if line.startswith("kubectl create namespace"):
            # nor does it support protobuf, which kubectl uses here
            line += " --dry-run=client --output json | kubectl create --validate=false --filename -"
        how = {"capture_output": True, "text": True, "timeout": 60}
        done = subprocess.run(["sh", "-ec", line], env=environment, cwd=ROOT, input=given, check=False, **how)
        assert done.returncode == 0, (line, done.stderr)

    kube.nodes.add("gpu-1")
    installed = deploy_check.render("single")
    for each in installed:
        if each["kind"] == "MutatingWebhookConfiguration":
            each["webhooks"] = []  # no webhook runs
        if (each["kind"], each["metadata"]["name"]) == ("ConfigMap", "sluice-bus-authorities"):
            each["data"] = {"ca.crt": "the authority"}  # as the callout fills it
    for name in ("monitoring", "research"):
        installed.append({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    everything = json.dumps({"apiVersion": "v1", "kind": "List", "items": installed})
    run("kubectl create --validate=false --filename -", given=everything)
    for line in typed:
        run(line)
    if page == "docs/operations.md":
        assert (tmp_path / "sluice-ca.crt").read_text(encoding="utf-8") == "the authority"
