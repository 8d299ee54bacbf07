"""The dashboard that is shipped: every picture asks for what is counted, and none hides another."""

import itertools
import json
import re
from pathlib import Path

import pytest
import yaml
from dashboard import WIDTH, dashboard
from jsonschema import Draft202012Validator
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
    """An agent shows what a slice was given at once, and what it uses once a driver has told: half would look idle."""
    (panel,) = [each for each in PICTURES if each["title"] == "Memory used of what was given"]
    part, whole = panel["targets"][0]["expr"].split(" / ")
    (used,) = re.findall(r"sluice_[a-z_]+", part)
    assert whole.endswith(f" and {used})")


def test_a_mistake_in_a_query_is_found():
    """The test above could never fail."""
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


DATASOURCE = {
    "type": "object",
    "properties": {"type": {"const": "prometheus"}, "uid": {"const": "${source}"}},
    "required": ["type", "uid"],
}
SCHEMA = {
    "type": "object",
    "required": ["title", "uid", "schemaVersion", "panels", "templating", "time"],
    "properties": {
        "uid": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,40}$"},
        "schemaVersion": {"type": "integer", "minimum": 36},
        "time": {"type": "object", "required": ["from", "to"]},
        "templating": {
            "properties": {
                "list": {
                    "items": {
                        "required": ["name", "type", "query"],
                        "properties": {"type": {"enum": ["query", "datasource"]}, "datasource": DATASOURCE},
                    }
                }
            }
        },
        "panels": {
            "items": {
                "required": ["id", "type", "title", "gridPos"],
                "properties": {
                    "id": {"type": "integer", "minimum": 1},
                    "type": {"enum": ["row", "stat", "table", "timeseries"]},
                    "title": {"type": "string", "minLength": 1},
                    "description": {"type": "string"},
                    "gridPos": {
                        "required": ["h", "w", "x", "y"],
                        "properties": {
                            "h": {"type": "integer", "minimum": 1},
                            "w": {"type": "integer", "minimum": 1, "maximum": 24},
                            "x": {"type": "integer", "minimum": 0, "maximum": 23},
                            "y": {"type": "integer", "minimum": 0},
                        },
                        "additionalProperties": False,
                    },
                },
                "if": {"properties": {"type": {"const": "row"}}},
                "then": {"required": ["collapsed", "panels"], "properties": {"panels": {"maxItems": 0}}},
                "else": {
                    "required": ["datasource", "targets", "fieldConfig"],
                    "properties": {
                        "datasource": DATASOURCE,
                        "fieldConfig": {
                            "required": ["defaults", "overrides"],
                            "properties": {
                                "defaults": {
                                    "properties": {
                                        "unit": {"enum": ["short", "s", "percentunit"]},
                                        "thresholds": {
                                            "required": ["mode", "steps"],
                                            "properties": {
                                                "mode": {"enum": ["absolute", "percentage"]},
                                                "steps": {
                                                    "prefixItems": [{"properties": {"value": {"type": "null"}}}],
                                                    "items": {"required": ["color", "value"]},
                                                },
                                            },
                                        },
                                    }
                                },
                                "overrides": {"type": "array"},
                            },
                        },
                        "targets": {
                            "minItems": 1,
                            "items": {
                                "required": ["refId", "expr", "datasource"],
                                "properties": {"refId": {"pattern": "^[A-Z]$"}, "datasource": DATASOURCE},
                            },
                        },
                    },
                },
            }
        },
    },
}
"""What Grafana's own schema needs of what we use (grafana/grafana, kinds/dashboard/dashboard_kind.cue)."""


def test_grafana_can_load_the_file():
    """It would show an empty page, or an error in place of a picture."""
    document = json.loads(SHIPPED.read_text(encoding="utf-8"))
    assert [error.message for error in Draft202012Validator(SCHEMA).iter_errors(document)] == []
    for variable in document["templating"]["list"]:
        if variable["type"] == "query":
            metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"]).groups()
            assert label in METRICS[metric].labels
    used = set(re.findall(r"\$(\w+)", json.dumps(document["panels"])))
    assert used <= {variable["name"] for variable in document["templating"]["list"]} | {"__rate_interval", "__range"}


def test_pictures_lie_beside_one_another():
    """Of two that overlap one is not seen."""
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
    """The component would be added, and no dashboard be there."""
    text = (ROOT / "deploy/kubernetes/components/dashboard/added.yaml").read_text(encoding="utf-8")
    made = yaml.safe_load(text)
    assert json.loads(made["data"]["sluice.json"])["panels"] == PANELS
    assert made["metadata"]["labels"]["grafana_dashboard"] == "1"
