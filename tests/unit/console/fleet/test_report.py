"""What `sluice report` makes of the recorder's answer and of a price table."""

import pytest

from sluice.contracts.pb import inventory_pb2 as pb
from sluice_console.core.fleet.report import price_doubts, report_cells, report_document, report_table, span_s
from sluice_console.shell.inspect.report import PricesError, read_prices

USE = {"gpu_hours": 3.0, "used_gpu_hours": 1.5, "idle_gpu_hours": 0.25, "capacity_gpu_hours": 12.0, "pod_hours": 6.0}
WAITS = {"waiting_pod_hours": 0.5, "bound": 4, "wait_p50_s": 30.0, "wait_p95_s": 600.0}
A100, H100 = "NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3"
ROW = pb.ReportRow(key="lab", gpu_hours_by_model={A100: 2.0, H100: 1.0}, **USE, **WAITS)
ANSWER = pb.ReportResponse(from_unix=0, until_unix=3600, step_s=60, rows=[ROW])


@pytest.mark.parametrize(
    ("prices", "cost", "doubted"),
    [
        ({}, None, []),
        ({A100: 1.5}, 3.0, [f"no price for {H100}: it counts as 0"]),
        ({A100: 1.5, "*": 4.0}, 7.0, []),
        ({A100: 0.0, H100: 0.0}, 0.0, []),
        # As `sluice gpus` writes it, as a fleet file does, and as people say it.
        ({"A100-SXM4-40GB": 1.5, "h100-sxm-80gb": 4.0}, 7.0, []),
        ({"A100": 9.0, "a100 40gb": 1.5, "h100": 4.0, "l4": 1.0}, 7.0, []),
        ({"A10O": 1.5, "*": 4.0}, 12.0, ["'A10O' is the name of no known model: its price is not used"]),
    ],
)
def test_a_bill_is_of_each_models_hours(prices, cost, doubted):
    """A model without a price is named, as its hours would be given away; so is a price that no hours can have."""
    document = report_document(ANSWER, "namespace", prices)
    assert (document.rows[0].cost, price_doubts(document, prices)) == (cost, doubted)
    assert report_cells(document.rows[0])[-1] == ("-" if cost is None else f"{cost:.2f}")


@pytest.mark.parametrize(
    ("by", "cells"),
    [
        ("namespace", ("lab", "3.0", "-", "1.5", "0.2", "6.0", "0.5", "30 s", "10 min", "4", "-")),
        ("model", ("lab", "3.0", "25 %", "1.5", "0.2", "6.0", "-", "-", "-", "-", "-")),
    ],
)
def test_what_is_not_known_by_a_key_is_no_zero(by, cells):
    document = report_document(ANSWER, by, {})
    assert report_cells(document.rows[0]) == cells
    row = dict(zip(*report_table(document), strict=True))
    assert (row[by], row["gpu_hours"]) == ("lab", 3.0)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "has no table"),
        ("[prices]", "has no table"),
        ("[prices]\na = true", "a = True must be a number per GPU hour"),
        ("[prices]\na = -1", "a = -1 must be a number"),
        ("[prices]\na = inf", "a = inf must be a number"),
        ("[prices", ""),
        (None, "cannot be read: No such file or directory$"),
    ],
)
def test_a_price_table_that_is_none_is_named(tmp_path, text, problem):
    file = tmp_path / "prices.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(PricesError, match=f"prices.toml: .*{problem}"):
        read_prices(file)


def test_a_price_is_a_number_of_either_kind(tmp_path):
    (tmp_path / "p").write_text('[prices]\n"A100-SXM4-40GB" = 2\n"*" = 0.5')
    assert read_prices(tmp_path / "p") == {"A100-SXM4-40GB": 2.0, "*": 0.5}


@pytest.mark.parametrize(
    ("text", "seconds"), [("90m", 5400), (" 7D ", 604800), ("4w", 2419200), ("0d", None), ("7", None)]
)
def test_a_span_has_a_unit(text, seconds):
    assert span_s(text) == seconds
