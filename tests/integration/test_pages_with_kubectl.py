"""The kubectl commands of README.md and docs/migration.md, run verbatim with the real kubectl."""

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
PAGES = {"README.md": 3, "docs/migration.md": 12}
"""With the least number of commands on each."""
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
    return [line for _, line in sorted(found, key=lambda each: each[0])]


@pytest.mark.parametrize("page", PAGES)
def test_every_command_does_what_it_says(page: str, tmp_path: Path) -> None:
    """A person who moves a cluster copies them as they are."""
    typed = commands(page)
    assert len(typed) >= PAGES[page]
    with FakeKube() as kube:
        environment = {
            "HOME": str(tmp_path),
            "KUBECONFIG": str(kube.kubeconfig(tmp_path / "config")),
            "PATH": os.environ["PATH"],
        }

        def run(line: str, given: str = "") -> None:
            # the fake has no OpenAPI to validate against
            line = line.replace("kubectl apply", "kubectl apply --validate=false")
            if line.startswith("kubectl create namespace"):
                # nor does it support protobuf, which kubectl uses here
                line += " --dry-run=client --output json | kubectl create --validate=false --filename -"
            done = subprocess.run(
                ["sh", "-ec", line],
                env=environment,
                cwd=ROOT,
                input=given,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert done.returncode == 0, (line, done.stderr)

        kube.nodes.add("gpu-1")
        installed = [each for each in deploy_check.render("single") if each["kind"] != "MutatingWebhookConfiguration"]
        meant = [
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in ("monitoring", "research")
        ]
        everything = json.dumps({"apiVersion": "v1", "kind": "List", "items": [*installed, *meant]})
        run("kubectl create --validate=false --filename -", given=everything)
        for line in typed:
            run(line)
