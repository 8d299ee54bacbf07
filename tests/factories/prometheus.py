"""A real Prometheus on loopback that scrapes a system's services, by the rules that are shipped."""

import contextlib
import json
import shutil
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from factories.processes import answering

from sluice.runtime.nats_server.free_ports import free_ports

PROGRAM = shutil.which("prometheus")
WHY_NO_PROMETHEUS = "there is no prometheus: PATH=$(sh tools/prometheus.sh):$PATH has Debian's"
SCRAPE_S = 1
RULES = Path(__file__).parents[2] / "deploy/helm/sluice/files/alerts.yaml"


@dataclass(frozen=True)
class Prometheus:
    """Asked as Grafana asks it."""

    port: int

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series of now, each with `metric` and `value`. Raises HTTPError for what is no PromQL."""
        return self.ask(f"query?{urllib.parse.urlencode({'query': expression})}")["result"]

    def rules(self) -> dict[str, dict[str, Any]]:
        """Every rule by its name, with its `health` and `lastError`."""
        groups = self.ask("rules")["groups"]
        return {rule["name"]: rule for group in groups for rule in group["rules"]}

    def ask(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/{path}", timeout=30) as answer:
            return json.load(answer)["data"]


@contextlib.contextmanager
def scraping(folder: Path, jobs: Mapping[str, int]) -> Iterator[Prometheus]:
    """One that answers, and scrapes these ports of loopback, by name of the job."""
    (port,) = free_ports(1)
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": [each | {"interval": "1s"} for each in groups]}))
    config = {
        "global": {"scrape_interval": f"{SCRAPE_S}s", "evaluation_interval": f"{SCRAPE_S}s"},
        "rule_files": [str(folder / "rules.yaml")],
        "scrape_configs": [
            # Pod and namespace of sluice_slice_info are those of the slice, as in the chart's monitors.
            {"job_name": name, "honor_labels": True, "static_configs": [{"targets": [f"127.0.0.1:{each}"]}]}
            for name, each in jobs.items()
        ],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    command = [str(PROGRAM), f"--config.file={folder / 'prometheus.yaml'}", f"--storage.tsdb.path={folder / 'tsdb'}"]
    command += [f"--web.listen-address=127.0.0.1:{port}"]
    prometheus = Prometheus(port)
    with answering(command, folder / "prometheus.log", lambda: prometheus.query("vector(1)")):
        yield prometheus
