"""What an operator's Prometheus makes of a running system: pictures of the dashboard, rules, DCGM's figures by pod."""

import csv
import json
import re
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import yaml
from factories.prometheus import PROGRAM, RULES, SCRAPE_S, WHY_NO_PROMETHEUS, Prometheus, scraping
from factories.system import Running, fleet_text, up

from sluice.runtime.nats_server.free_ports import free_ports
from sluice_node_agent.shell.commands.hardware_command import change_hardware

pytestmark = [pytest.mark.slow, pytest.mark.skipif(PROGRAM is None, reason=WHY_NO_PROMETHEUS)]
ROOT = Path(__file__).parents[2]
WITHIN_S = 180.0
"""The recorder reports whole minutes."""
SERVICES = ("pod-watcher", "allocator", "node-agent", "inventory")
FLEET = fleet_text(1, 1).replace("A100-SXM4-40GB", "H100-SXM-80GB")
"""Of an A100's instances the driver does not report how busy they are."""
PODS = {"trains": "3g.40gb", "serves": "2g.20gb", "waits": "7g.80gb", "never": "7g.40gb"}
BOUND = {"trains", "serves"}
VARIABLES = {"$team": ".*", "$__rate_interval": f"{4 * SCRAPE_S}s", "$__range": "1m"}
NOTHING = {
    "API server": "there is none",
    "Judging a pod": "there is no webhook",
    "Idle": "none idles for half an hour",
    "Granted and idle for over an hour": "none is granted for so long",
    "Published again": "nothing is lost, unless the machine is slow",
    "Refused by devices": "none was refused",
}
"""Pictures that may have nothing to show of this system, and why."""


def pictures() -> Iterator[tuple[str, str]]:
    """Title and query of each, as Grafana asks it with these VARIABLES."""
    document = json.loads((ROOT / "deploy/helm/sluice/files/dashboard.json").read_text(encoding="utf-8"))
    for panel in document["panels"]:
        for target in panel.get("targets", ()):
            query = target["expr"]
            for name, value in VARIABLES.items():
                query = query.replace(name, value)
            yield panel["title"], query


class Exporter:
    """What NVIDIA's exporter shows of the devices of a node (tests/unit/node_agent/test_metrics.py says from where)."""

    text = ""

    def __init__(self) -> None:
        """Answers until it is closed."""
        shown = self

        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(shown.text.encode())

            def log_message(self, *_: object) -> None:
                """Nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture(scope="module")
def exporter() -> Iterator[Exporter]:
    found = Exporter()
    yield found
    found.server.shutdown()
    found.server.server_close()


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory, exporter: Exporter) -> Iterator[tuple[Running, Prometheus]]:
    """A small system with pods that work, wait and can never start; a Prometheus follows it."""
    folder = tmp_path_factory.mktemp("prometheus")
    ports = dict(zip(SERVICES, free_ports(len(SERVICES)), strict=True))
    environment = {
        f"SLUICE_{name.replace('-', '_').upper()}_METRICS_ADDRESS": f"127.0.0.1:{port}" for name, port in ports.items()
    } | {"SLUICE_NODE_AGENT_USAGE_EVERY_S": "0.5"}
    jobs = ports | {"dcgm": exporter.server.server_address[1]}
    with up(folder, FLEET, environment=environment) as running, scraping(folder, jobs) as prometheus:
        for name, profile in PODS.items():
            running.write(name, profile)
        until(lambda: busy(running, prometheus), running.said)
        yield running, prometheus


@pytest.fixture
def prometheus(system: tuple[Running, Prometheus]) -> Prometheus:
    return system[1]


def busy(running: Running, prometheus: Prometheus) -> bool:
    """Start a process on the slice of the pod that trains, once it has one."""
    found = {each["metric"]["pod"]: each["metric"] for each in prometheus.query("sluice_slice_info")}
    if found.keys() < BOUND:
        return False
    pods = running.json("pods")["pods"]
    (pod,) = (each for each in pods if each["name"] == "trains")
    device = pod["containers"][0]["visible_devices"]
    command = ["hardware", "--data", str(running.data), "node", "start-process", device]
    assert change_hardware([*command, "--busy-percent", "60", "--memory-mib", "900"]) == 0
    return True


def until(condition: Callable[[], bool], what: Callable[[], object]) -> None:
    """Wait for what Prometheus sees a scrape later; else fail with `what` there is."""
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(SCRAPE_S)


def test_every_picture_has_something_to_show(prometheus):
    """PromQL that is right by its names may be no PromQL, or match nothing: a picture stays empty."""
    queries = list(pictures())

    def empty() -> set[str]:
        return {title for title, _ in queries} - {title for title, query in queries if prometheus.query(query)}

    until(lambda: empty() <= NOTHING.keys(), lambda: ", ".join(sorted(empty() - NOTHING.keys())))


def test_every_rule_can_be_evaluated(prometheus):
    """A rule that Prometheus rejects takes all others of its file with it."""
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    names = {rule.get("alert") or rule["record"] for group in groups for rule in group["rules"]}
    until(lambda: all(each["health"] != "unknown" for each in prometheus.rules().values()), prometheus.rules)
    found = prometheus.rules()
    assert {name: rule.get("lastError") for name, rule in found.items() if rule["health"] != "ok"} == {}
    assert found.keys() == names
    recorded = "namespace:sluice_gpus:rate5m"
    until(lambda: len(prometheus.query(recorded)) == 1, lambda: prometheus.query(recorded))


def test_the_report_has_the_hours_that_prometheus_counts(system, tmp_path):
    """A lead who compares the two, or writes a bill from one of them, would trust neither."""
    running, prometheus = system
    prices = tmp_path / "prices.toml"
    prices.write_text('[prices]\n"*" = 3600\n')
    counted = 'sum(sluice_namespace_gpu_seconds_total{namespace="default"})'

    def reported(*words: str) -> dict[str, dict]:
        return {row["key"]: row for row in running.json("report", "--since", "7d", *words)["rows"]}

    def agree() -> bool:
        found = prometheus.query(counted)
        if not found:
            return False
        (seconds,) = (float(each["value"][1]) for each in found)
        rows = reported("--by", "namespace", "--prices", str(prices))
        return "default" in rows and rows["default"]["cost"] == pytest.approx(seconds, rel=0.001)

    until(agree, lambda: (prometheus.query(counted), reported()))
    (model,), (everything,) = reported("--by", "model").values(), reported("--by", "all", "--points").values()
    assert model["gpu_hours_by_model"].keys() == {model["key"]}
    assert sum(point["allocated_gpus"] for point in everything["points"]) > 0
    lines = csv.DictReader(
        running.sluice("report", "--since", "4w", "--prices", str(prices), "--csv").stdout.splitlines()
    )
    (line,) = (each for each in lines if each["namespace"] == "default")
    assert float(line["cost"]) > 0
    prices.write_text("[prices]\nother = 1\n")
    assert f"no price for {model['key']}: " in running.sluice("report", "--prices", str(prices)).stderr


def test_figures_of_dcgm_have_the_names_of_pods(prometheus, exporter):
    """By the query of docs/usage.md; each figure is that of its own device."""
    (join,) = re.findall(
        r"^sluice_slice_info \* .*$", (ROOT / "docs/usage.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    info = [each["metric"] for each in prometheus.query("sluice_slice_info")]
    figures = {each["pod"]: number / 10 for number, each in enumerate(info, 1)}
    exporter.text = "".join(
        f'DCGM_FI_PROF_GR_ENGINE_ACTIVE{{gpu="0",UUID="{each["UUID"]}",device="nvidia0",Hostname="node",'
        f'GPU_I_PROFILE="{each["GPU_I_PROFILE"]}",GPU_I_ID="{each["GPU_I_ID"]}"}} {figures[each["pod"]]}\n'
        for each in info
    )
    assert figures.keys() == BOUND

    def joined() -> dict[str, float]:
        return {each["metric"]["pod"]: float(each["value"][1]) for each in prometheus.query(join)}

    until(lambda: joined() == figures, joined)
