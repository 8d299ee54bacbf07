"""The dashboard that is shipped: every picture asks for what is counted, and none hides another."""

import itertools
import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from cluster.harness.binaries import EXTRAS, BuildError, kept
from dashboard import WIDTH, dashboard
from unit.deploy.queries import METRICS, labels_by, problems_of

ROOT = Path(__file__).parents[3]
SHIPPED = ROOT / "deploy/helm/sluice/files/dashboard.json"
PANELS = json.loads(SHIPPED.read_text(encoding="utf-8"))["panels"]
PICTURES = [panel for panel in PANELS if panel["type"] != "row"]


@pytest.mark.parametrize("panel", PICTURES, ids=lambda panel: panel["title"])
def test_a_picture_asks_for_metrics_and_labels_that_exist(panel):
    """A picture without numbers is noticed on the night on which it is needed."""
    assert panel["targets"]
    for target in panel["targets"]:
        assert problems_of(target["expr"]) == [], panel["title"]
        shown = set(re.findall(r"\{\{([a-z_]+)\}\}", target.get("legendFormat", "")))
        assert shown <= labels_by(target["expr"]), (panel["title"], shown)


def test_a_part_is_of_what_it_is_known_of():
    """An agent shows what a slice was given at once, its use once a driver has reported: half would look idle."""
    (panel,) = [each for each in PICTURES if each["title"] == "Memory used of what was given"]
    part, whole = panel["targets"][0]["expr"].split(" / ")
    (used,) = re.findall(r"sluice_[a-z_]+", part)
    assert whole.endswith(f" and {used})")


def test_a_mistake_in_a_query_is_found():
    for wrong in (
        "max(sluice_no_such_thing)",
        'max(sluice_gpus{node="x"})',
        "max by (pod) (sluice_gpus)",
        "rate(sluice_core_event_seconds[5m])",
        "sluice_bus_writes_total",
        "max(sluice_gpus",
        "up",
    ):
        assert problems_of(wrong), wrong


def test_grafana_can_load_the_file():
    """It would show an empty page, or an error in place of a picture."""
    try:
        program = kept(EXTRAS["grafana"]) / "grafana"
    except BuildError as error:
        pytest.skip(str(error))
    for text, problem in (
        (SHIPPED.read_text(encoding="utf-8"), ""),
        (dashboard().replace('"expr"', '"exrp"', 1), "panels[1].targets[0]"),
    ):
        read = subprocess.run([program], input=text, capture_output=True, text=True, timeout=60, check=False)
        assert (bool(read.returncode), read.stdout[: len(problem) or None]) == (bool(problem), problem)


def test_what_the_file_asks_for_is_defined_in_it():
    document = json.loads(SHIPPED.read_text(encoding="utf-8"))
    for variable in document["templating"]["list"]:
        if variable["type"] == "query":
            metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"]).groups()
            assert label in METRICS[metric].labels
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(document["panels"])))
    assert used <= {variable["name"] for variable in document["templating"]["list"]} | {"__rate_interval", "__range"}


def test_pictures_lie_beside_one_another():
    seen = set()
    for panel in PANELS:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= WIDTH
        cells = set(itertools.product(range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"])))
        assert not cells & seen, panel["title"]
        seen |= cells
    numbers = [panel["id"] for panel in PANELS]
    assert len(set(numbers)) == len(numbers)


def test_the_file_is_as_its_generator_writes_it():
    """A change by hand would be lost with the next `make docs`."""
    assert SHIPPED.read_text(encoding="utf-8") == dashboard(), "run `make docs`"


def test_grafana_is_handed_the_file():
    text = (ROOT / "deploy/kubernetes/components/dashboard/added.yaml").read_text(encoding="utf-8")
    made = yaml.safe_load(text)
    assert json.loads(made["data"]["sluice.json"])["panels"] == PANELS
    assert made["metadata"]["labels"]["grafana_dashboard"] == "1"
