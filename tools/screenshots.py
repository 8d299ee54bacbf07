"""
Makes docs/images/map-light.png and map-dark.png: a real system on simulated GPUs, in a real headless Chromium.

Everything in the picture was given by the services: `sluice up`, a handful of nodes, some dozens of pods. Needs
Debian's /usr/bin/chromium; touches nothing else, and leaves nothing running.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
CHROMIUM = Path("/usr/bin/chromium")
OPTIONS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
SIZE = {"width": 1440, "height": 900}
BYTES_MAX = 200_000
READY_S = 60.0
SETTLED_S = 60.0
CHOSEN = "vision-7b"
"""Whose story is open in the picture."""

FLEET = """
[[node]]
name = "a100"
count = 4
pool = "training"
cpu_cores = 128
memory_mib = 1048576
modes = ["exclusive"]
gpus = [{ model = "a100-40gb", count = 4, mig = true }]

[[node]]
name = "h100"
count = 2
pool = "training"
cpu_cores = 128
memory_mib = 1048576
modes = ["exclusive"]
gpus = [{ model = "h100-sxm-80gb", count = 4, mig = true }]

[[node]]
name = "serving-1"
pool = "serving"
cpu_cores = 64
memory_mib = 524288
modes = ["exclusive", "mps", "fractional"]
gpus = [{ model = "a100-80gb", count = 2, mig = false }]

[[node]]
name = "lab-1"
pool = "lab"
cpu_cores = 32
memory_mib = 262144
modes = ["exclusive"]
gpus = [{ model = "a100-40gb", count = 2, mig = true }]
[node.faults]
xid = 79
xid_gpu = 1
"""
PODS: tuple[tuple[str, str, int, dict[str, str]], ...] = (
    ("research", CHOSEN, 1, {"profile": "7g.40gb"}),
    ("research", "vision-13b", 1, {"profile": "7g.80gb"}),
    ("research", "sweep", 8, {"profile": "3g.20gb"}),
    ("research", "sweep-large", 3, {"profile": "3g.40gb"}),
    ("notebooks", "jupyter", 9, {"profile": "1g.5gb"}),
    ("notebooks", "marimo", 5, {"profile": "1g.10gb"}),
    ("batch", "embed", 3, {"profile": "2g.10gb"}),
    ("batch", "rerank", 2, {"profile": "2g.20gb"}),
    ("serving", "chat", 5, {"mode": "mps", "memory": "14Gi"}),
    ("search", "query", 4, {"mode": "fractional", "sm-partition": "20", "memory": "16Gi"}),
    ("research", "pretrain", 6, {"profile": "7g.80gb"}),
    ("batch", "nightly", 1, {"sm-percentage": "120"}),
)
POD = """apiVersion: v1
kind: Pod
metadata:
  name: {name}
  namespace: {namespace}
  annotations: {{ {annotations} }}
spec:
  containers: [{{ name: main, image: train }}]
"""


def main() -> int:
    """Make both pictures; say how large they are."""
    if not CHROMIUM.exists():
        sys.stderr.write(f"no pictures: there is no {CHROMIUM} (on Debian: apt-get install chromium)\n")
        return 1
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="sluice-screenshots-") as folder, system(Path(folder)) as url:
        sizes = pictures(url)
    for file, size in sizes.items():
        sys.stdout.write(f"{file.relative_to(ROOT)}: {size // 1024} KiB\n")
        if size > BYTES_MAX:
            sys.stderr.write(f"{file.name} has {size} bytes; at most {BYTES_MAX} suit a README\n")
    return int(max(sizes.values()) > BYTES_MAX)


def pictures(url: str) -> dict[Path, int]:
    """Make one picture for each theme; how many bytes each has."""
    made = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(OPTIONS))
        for scheme in ("light", "dark"):
            context = browser.new_context(viewport=SIZE, color_scheme=scheme, reduced_motion="reduce")
            page = context.new_page()
            page.goto(url)
            page.locator("#group").select_option("pool")
            settle(page)
            picture = IMAGES / f"map-{scheme}.png"
            page.screenshot(path=picture)
            made[picture] = picture.stat().st_size
            context.close()
        browser.close()
    return made


def settle(page: Page) -> None:
    """Wait until every pod has what it can have, and open the story of one."""
    page.wait_for_function(
        """() => document.querySelector("#status.live") && !document.querySelector("#canvas .making")
          && [...document.querySelectorAll("#requests .tag")].every(tag => tag.innerText.match(/waiting|refused/))
          && document.querySelectorAll("#requests button").length > 0""",
        timeout=SETTLED_S * 1000,
    )
    page.locator("#canvas .seg", has_text=CHOSEN).click()
    page.locator("#detail .steps li", has_text="is bound").wait_for()
    page.locator("#detail .waterfall").first.wait_for()
    page.mouse.move(0, 0)


@contextlib.contextmanager
def system(folder: Path) -> Iterator[str]:
    """A running `sluice up` with all pods asked for; gives the address of its page."""
    pods, log = folder / "pods", folder / "up.log"
    pods.mkdir()
    (folder / "fleet.toml").write_text(FLEET, encoding="utf-8")
    command = [sys.executable, "-m", "sluice_console", "up", "--web", "127.0.0.1:0"]
    command += ["--fleet", str(folder / "fleet.toml"), "--pods", str(pods), "--data", str(folder / "data")]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment, start_new_session=True)
    try:
        url = _reached(process, log)
        subprocess.run(
            [sys.executable, "-m", "sluice_console", "cordon", "a100-2", "--gpu", "3", "--why", "new fans on Friday"],
            env=environment | {"SLUICE_NATS_URL": _found(r"NATS +(nats://\S+)", log)},
            check=True,
            timeout=30,
            stdout=subprocess.DEVNULL,
        )
        ask(pods)
        yield url
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def ask(folder: Path) -> None:
    """Write every pod's manifest."""
    for namespace, name, count, asked in PODS:
        annotations = ", ".join(f'sluice.dev/{key}: "{value}"' for key, value in asked.items())
        texts = [
            POD.format(name=name if count == 1 else f"{name}-{number}", namespace=namespace, annotations=annotations)
            for number in range(1, count + 1)
        ]
        (folder / f"{name}.yaml").write_text("---\n".join(texts), encoding="utf-8")


def _reached(process: subprocess.Popen[bytes], log: Path) -> str:
    """The page's address, once it answers."""
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline and process.poll() is None:
        url = _found(r"page +(http://\S+)", log)
        if url and "the page is at" in _web_log(log):
            return url
        time.sleep(0.1)
    raise SystemExit(f"sluice up did not become ready:\n{log.read_text()}")


def _web_log(log: Path) -> str:
    file = log.parent / "data" / "logs" / "web-page.log"
    return file.read_text(encoding="utf-8") if file.exists() else ""


def _found(pattern: str, log: Path) -> str:
    found = re.search(pattern, log.read_text(encoding="utf-8"))
    return found[1] if found is not None else ""


if __name__ == "__main__":
    sys.exit(main())
