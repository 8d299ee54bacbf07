"""The page of reasons has a row for everything that a person can meet, and for nothing else."""

import ast
import inspect
import re
from pathlib import Path

import pytest
import yaml

from sluice.contracts.reason_hints import HINTS
from sluice.contracts.reasons import KNOWN_AS, RefusalReason, WaitReason
from sluice_allocator.core.placement.explain.reason_table import IN_WORDS
from sluice_pod_watcher.core.cluster import bus_handler, pod_reconciler
from sluice_pod_watcher.core.cluster.pods import pod_problem

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "reasons.md").read_text()


def rows(title):
    """The rows of one section's table, by their first cell."""
    section = PAGE.split(f"## {title}\n")[1].split("\n## ")[0]
    lines = [line.strip("|") for line in section.splitlines() if line.startswith("|")]
    found = [[cell.strip() for cell in line.split("|")] for line in lines]
    return {cells[0].strip("`"): cells for cells in found[2:]}


def events():
    """Every reason of an Event that the code names, in the modules that tell."""
    found = set()
    for module in (pod_problem, pod_reconciler, bus_handler):
        for call in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(call, ast.Call):
                name = getattr(call.func, "attr", getattr(call.func, "id", ""))
                at = {"_said": 1, "event": 2}.get(name)
                if at is not None:
                    found |= {each.value for each in ast.walk(call.args[at]) if isinstance(each, ast.Constant)}
    return found | {pod_problem.WAITS, pod_problem.UNANSWERED}


def test_every_reason_to_wait_has_a_row():
    assert set(rows("Why it waits")) == set(WaitReason)


@pytest.mark.parametrize("reason", list(WaitReason))
def test_every_reason_is_said_in_words_with_what_would_help(reason):
    assert IN_WORDS[reason]
    assert re.fullmatch(r"[A-Z].*\.", HINTS[reason])
    assert rows("Why it waits")[reason][3].strip("`") == KNOWN_AS.get(reason, "")


def test_every_refusal_has_a_row():
    assert set(rows("Why it is refused")) == set(RefusalReason)


def test_every_event_has_a_row():
    assert events() > {"SliceBound", "SliceLost", "SliceWarning", "Evicting"}
    assert set(rows("Events")) == events() | {"the name of a refusal"}


def test_every_column_has_a_row():
    definition = yaml.safe_load((ROOT / "deploy/kubernetes/base/crd-gpus.yaml").read_text())
    columns = definition["spec"]["versions"][0]["additionalPrinterColumns"]
    plain = {each["name"].upper() for each in columns if not each.get("priority")}
    assert plain - {"NODE", "MODEL"} == set(rows("The fleet in kubectl"))
