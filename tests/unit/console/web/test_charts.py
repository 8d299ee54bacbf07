"""The page: its scripts, charts and figures of use."""

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

import pytest
from factories.console import pod_of, usage_of

from sluice.contracts.ids import NodeName
from sluice.contracts.pb import inventory_pb2 as pb
from sluice.contracts.reasons import WaitReason
from sluice.contracts.slice_usage import NodeUsage
from sluice_console.core.web.charts import STEPS_MAX, TEAMS_MAX, chart_document
from sluice_console.shell.web.app import STATIC, span_of
from sluice_console.shell.web.reports import Span
from sluice_console.shell.web.usage import COUNTS_FOR_S, KEPT_MAX, Usages

MINUTE = 60


def _answer(minutes, rows, step_s=MINUTE):
    return pb.ReportResponse(from_unix=6000, until_unix=6000 + minutes * MINUTE, step_s=step_s, rows=rows)


def _row(key, values, hours=1.0, step_s=MINUTE):
    points = [
        pb.ReportPoint(start_unix=6000 + index * step_s, allocated_gpus=value, capacity_gpus=value)
        for index, value in enumerate(values)
        if value
    ]
    return pb.ReportRow(key=key, gpu_hours=hours, points=points)


@pytest.mark.parametrize("minutes", [1, 7, 240, 241, 1440, 5000])
def test_a_chart_has_few_steps_and_the_same_area(minutes):
    values = [(index * 7) % 11 for index in range(minutes)]
    chart = chart_document(_answer(minutes, [_row("a", values)]), _answer(minutes, [_row("", values)]))
    (team,) = chart.teams
    assert len(team.allocated) == len(chart.capacity) <= STEPS_MAX
    ends = [min(chart.end, chart.start + (index + 1) * chart.step_s) for index in range(len(team.allocated))]
    area = sum(
        mean * (end - chart.start - index * chart.step_s)
        for index, (mean, end) in enumerate(zip(team.allocated, ends, strict=True))
    )
    assert area == pytest.approx(sum(values) * MINUTE, rel=1e-3)
    assert chart.capacity == team.allocated


def test_teams_beyond_the_colours_are_summed_up():
    rows = [_row(f"t{number}", [1.0], hours=20.0 - number) for number in range(12)]
    chart = chart_document(_answer(1, rows), _answer(1, []))
    assert [each.team for each in chart.teams] == [*(f"t{number}" for number in range(TEAMS_MAX - 1)), ""]
    assert chart.teams[-1].allocated == (5.0,)
    assert sum(each.gpu_hours for each in chart.teams) == sum(row.gpu_hours for row in rows)
    assert chart.capacity == (0.0,)


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ({}, 86400),
        ({"since": "30d"}, 30 * 86400),
        ({"from": "6001", "until": "6061"}, Span(6000, 6060)),
        ({"since": "soon"}, "since = 'soon': must be at most 90d"),
        ({"since": "91d"}, "since = '91d': must be at most 90d"),
        ({"from": "-1", "until": "5"}, "from = '-1': must be unix seconds"),
        ({"from": "6000"}, "until = '': must be unix seconds"),
        ({"from": "6000", "until": "60"}, "until = 60: must be after from"),
        ({"from": "0", "until": "9999999999"}, "by at most 7776000 seconds"),
    ],
)
def test_a_span_that_is_none_is_named(query, wanted):
    with pytest.raises(ValueError, match=wanted) if isinstance(wanted, str) else nullcontext():
        assert span_of(query) == wanted


HERE = Path(__file__).parent
NODE = shutil.which("node")


@pytest.mark.skipif(NODE is None, reason="there is no node; tests/integration/test_web_page.py runs them in a browser")
def test_the_scripts_find_place_and_keep_what_they_should(tmp_path):
    """A gap that is not noticed shows a fleet that never was."""
    shutil.copytree(STATIC, tmp_path / "static")
    shutil.copytree(HERE / "scripts", tmp_path / "scripts")
    (tmp_path / "package.json").write_text(json.dumps({"type": "module"}))
    files = sorted((tmp_path / "scripts").glob("*.test.mjs"))
    (tmp_path / "all.js").write_text("".join(f'import "./scripts/{file.name}";\n' for file in files))
    done = subprocess.run(
        [NODE, "all.js"], cwd=tmp_path, capture_output=True, text=True, timeout=50, check=False
    )  # one process: the runner would start one for each file
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"# pass {sum(file.read_text().count('test(') for file in files)}\n" in done.stdout


def test_no_script_reads_html_from_a_string_or_runs_text():
    """A pod's name is written by any user who may create pods; on the page it must stay a name."""
    scripts = sorted(STATIC.glob("*.js"))
    assert len(scripts) > 10
    for script in scripts:
        text = script.read_text(encoding="utf-8")
        for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "://"):
            assert way not in text, f"{script.name} uses {way}"
        assert len(text.splitlines()) < 400, f"{script.name} has grown too long"


def test_every_script_is_asked_for_at_once():
    """One that is found only inside another is one more way to the server and back before anything shows."""
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    preloaded = re.findall(r'<link rel="modulepreload" href="/static/([\w.]+)">', page)
    assert sorted([*preloaded, "main.js"]) == sorted(file.name for file in STATIC.glob("*.js"))


def test_every_wait_reason_has_words_on_the_page():
    words = (STATIC / "reasons.js").read_text(encoding="utf-8")
    assert [reason.value for reason in WaitReason if f"  {reason.value}: " not in words] == []


class Agents:
    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.now = 100.0

    async def ask(self, endpoints: Mapping[str, str]) -> dict[str, NodeUsage | str]:
        """Two pods are on each node; one node does not answer."""
        self.asked += endpoints.items()
        await asyncio.sleep(0)
        both = (usage_of("one"), usage_of("two", idle_s=7200.0))
        found = {node: NodeUsage(node=NodeName(node), every_s=30.0, slices=both) for node in endpoints}
        return found | {node: "UNAVAILABLE: no server is there" for node in endpoints if node == "gone"}


@pytest.fixture
def agents() -> Agents:
    return Agents()


@pytest.fixture
def usages(agents) -> Usages:
    return Usages(agents.ask, lambda: agents.now)


async def test_an_answer_counts_for_some_seconds_for_all_viewers(agents, usages):
    """A page left open by a hundred people would ask an agent all day."""
    found = await asyncio.gather(*(usages.of(pod_of(name, node="gpu-1"), "host:1") for name in ("one", "two") * 50))
    assert agents.asked == [("gpu-1", "host:1")]
    assert [[each.request for each in document.slices] for document in found[:2]] == [["one"], ["two"]]
    agents.now += COUNTS_FOR_S
    await usages.of(pod_of("one", node="gpu-1"), "host:1")
    assert len(agents.asked) == 2


async def test_an_agent_that_does_not_answer_is_said_to(usages):
    document = await usages.of(pod_of("one", node="gone"), "host:1")
    assert (document.slices, document.silent) == ((), {"gone": "UNAVAILABLE: no server is there"})


async def test_answers_of_nodes_without_end_do_not_fill_the_memory(usages):
    """A server that runs for months has seen every node there ever was."""
    for number in range(KEPT_MAX + 10):
        await usages.of(pod_of("one", node=f"gpu-{number}"), "host:1")
    assert len(usages._nodes) == KEPT_MAX
    assert not usages._nodes._asking


async def test_what_is_idle_is_asked_of_all_agents_once_a_minute(agents, usages):
    endpoints = {"gpu-1": "host:1", "gone": "host:2"}
    found, _ = await asyncio.gather(usages.idle(endpoints.copy), usages.idle(endpoints.copy))
    assert ([each.request for each in found.slices], list(found.silent)) == (["two"], ["gone"])
    assert len(agents.asked) == 2
