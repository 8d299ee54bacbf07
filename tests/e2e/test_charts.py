"""Public charts' pods (`charts/`, listed in docs/migration.md): unchanged each works, or says what to change."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHARTS = sorted((Path(__file__).parent / "charts").glob("*.yaml"))
FLEET = """
[[node]]
name = "gpu-1"
labels = { "nvidia.com/gpu" = "true" }
gpus = [ { model = "NVIDIA A100-SXM4-40GB", mig = true, count = 16 } ]
"""
LEFT_ALONE = {"ollama-dra-0", "ray-serve-llm-head-0", "stack-router-0"}
GIVEN = {
    "comfyui-0": ("comfyui-helm", "7g.40gb"),
    "etl-exec-1": ("spark-kubernetes-executor", "7g.40gb"),
    "jupyter-ada": ("notebook", "1g.5gb"),
    "ollama-0": ("ollama", "3g.20gb"),
    "ray-serve-llm-gpu-group-0": ("ray-worker", "7g.40gb"),
    "ray-serve-llm-gpu-group-1": ("ray-worker", "7g.40gb"),
    "stack-llama3-deployment-vllm-0": ("vllm", "3g.20gb"),
    "stack-llama3-deployment-vllm-1": ("vllm", "3g.20gb"),
    "train-0": ("train", "7g.40gb"),
    "train-x7k2p-main-1203948": ("main", "3g.20gb"),
    "triton-0": ("triton-inference-server", "7g.40gb"),
    "vision-0": ("vision", "7g.40gb"),
    "vision-1": ("vision", "2g.10gb"),
}
TOLD = {
    "ollama-dra-0": "this file has no ResourceClaimTemplate 'ollama' in namespace default",
    "comfyui-0": "NVIDIA_VISIBLE_DEVICES = 'all' is replaced by the container's own devices",
    "train-0": "leave schedulerName out, or leave the pod to Slurm with the label sluice.dev/ignore",
}
REFUSED = {
    "jupyter-bob": "a GPU resource needs a limit, and has only a request (allowed: the same under limits)",
    "ollama-two-0": "one container is given devices of one profile",
}


async def test_pods_of_public_charts_work_or_say_what_to_change(up, tmp_path):
    """Otherwise only the source of a chart would show why its pod does not start."""
    up.fleet = tmp_path / "fleet.toml"
    up.fleet.write_text(FLEET)
    await up.started()
    done = up.sluice("simulate", *(word for file in CHARTS for word in ("-f", str(file))), "--json")
    pods = {pod["name"]: pod for pod in json.loads(done.stdout)["pods"]}
    given = {
        name: [(each["container"], each["profile"]) for each in pod["devices"]]
        for name, pod in pods.items()
        if pod["answer"] == "bound"
    }
    assert given == {name: [devices] for name, devices in GIVEN.items()}
    assert {name for name, pod in pods.items() if pod["answer"] == "nothing"} == LEFT_ALONE
    assert {name: pod["message"] for name, pod in pods.items() if pod["answer"] == "refused"}.keys() == REFUSED.keys()
    for name, sentence in REFUSED.items():
        assert sentence in pods[name]["message"]
    assert {name for name, pod in pods.items() if pod["warnings"]} == TOLD.keys()
    for name, sentence in TOLD.items():
        assert sentence in " ".join(pods[name]["warnings"])


def test_the_page_on_migration_has_a_row_for_each_chart():
    """What was tried is written down where people look for it."""
    page = (ROOT / "docs/migration.md").read_text(encoding="utf-8")
    section = page.partition("## From public charts\n")[2].partition("\n## ")[0]
    named = re.findall(r"^\| .*tests/e2e/charts/([\w-]+\.yaml)\)", section, re.MULTILINE)
    assert sorted(named) == [file.name for file in CHARTS]
