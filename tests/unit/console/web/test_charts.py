"""Use over time and ended pods, as the page gets them."""

import pytest

from sluice.contracts.pb import inventory_pb2 as pb
from sluice_console.core.web.charts import STEPS_MAX, TEAMS_MAX, chart_document
from sluice_console.shell.web.app import span_of
from sluice_console.shell.web.reports import Span

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
    if isinstance(wanted, str):
        with pytest.raises(ValueError, match=wanted):
            span_of(query)
    else:
        assert span_of(query) == wanted
