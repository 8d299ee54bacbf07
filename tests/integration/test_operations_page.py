"""The commands of docs/operations.md, run verbatim with the real kubectl at an API server."""

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
PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
NOT_HERE = ("port-forward", "create token")
"""What the fake cannot do: there is no kubelet behind it to connect to, and it signs no token."""

pytestmark = [
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on PATH"),
    pytest.mark.slow,
]


def commands() -> list[str]:
    blocks = re.findall(r"^```\w*\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    lines = [line.partition("#")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith("kubectl ") and not any(word in line for word in NOT_HERE)]


def _namespace(name: str) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def test_every_command_on_the_page_does_what_it_says(tmp_path: Path) -> None:
    """A person in trouble copies them as they are."""
    assert len(commands()) >= 15
    with FakeKube() as kube:
        environment = {
            "HOME": str(tmp_path),
            "KUBECONFIG": str(kube.kubeconfig(tmp_path / "config")),
            "PATH": os.environ["PATH"],
        }

        def run(*words: str, given: str = "") -> None:
            done = subprocess.run(
                words, env=environment, cwd=ROOT, input=given, capture_output=True, text=True, timeout=60, check=False
            )
            assert done.returncode == 0, (words, done.stderr)

        kube.nodes.add("gpu-1")
        installed = [each for each in deploy_check.render("single") if each["kind"] != "MutatingWebhookConfiguration"]
        for each in installed:
            if (each["kind"], each["metadata"]["name"]) == ("ConfigMap", "sluice-bus-authorities"):
                each["data"] = {"ca.crt": "the authority"}  # as the callout fills it
        meant = [
            *(_namespace(name) for name in ("monitoring", "research")),
            {
                "apiVersion": "admissionregistration.k8s.io/v1",
                "kind": "MutatingWebhookConfiguration",
                "metadata": {"name": "sluice"},
                "webhooks": [],
            },
        ]
        everything = json.dumps({"apiVersion": "v1", "kind": "List", "items": [*installed, *meant]})
        run("kubectl", "create", "--validate=false", "--filename", "-", given=everything)
        for command in commands():
            # the fake has no OpenAPI to validate against
            run("sh", "-c", command.replace("kubectl apply", "kubectl apply --validate=false"))
    assert (tmp_path / "sluice-ca.crt").read_text(encoding="utf-8") == "the authority"
