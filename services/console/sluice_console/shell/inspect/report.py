"""`sluice report`: asks the recorder for use over time, and prints it."""

import csv
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from sluice.contracts.pb import inventory_pb2 as pb
from sluice.contracts.toml_tables import TOML_BYTES_MAX, parse_toml
from sluice.runtime.bus import Bus
from sluice.runtime.text_files import read_named_text
from sluice_console.core.fleet.report import (
    COLUMNS,
    ReportDocument,
    price_doubts,
    report_cells,
    report_document,
    report_table,
)
from sluice_console.shell.errors import CommandError
from sluice_console.shell.live.allocator_client import recorder
from sluice_console.shell.live.connect import connected
from sluice_console.shell.output.answer import Answer
from sluice_console.shell.output.printer import console, said, show_table

ANSWER_WITHIN_S = 30.0
KEYS = {
    "all": pb.REPORT_KEY_UNSPECIFIED,
    "namespace": pb.REPORT_KEY_NAMESPACE,
    "model": pb.REPORT_KEY_MODEL,
    "node": pb.REPORT_KEY_NODE,
}


class PricesError(CommandError):
    """The price table cannot be used. One sentence."""


async def report(url: str, *, since_s: int, by: str, points: bool, prices: Path | None, as_csv: bool) -> Answer:
    """`sluice report`. Raises BusError, PricesError, NotAskableError."""
    table = read_prices(prices) if prices is not None else {}
    async with connected(url) as bus:
        document = await asked_report(bus, since_s=since_s, by=by, points=points, prices=table)
    notes = (f"--prices {prices}: {doubt}" for doubt in price_doubts(document, table))
    return Answer((document,), _write_csv if as_csv else _show, tuple(notes))


async def asked_report(
    bus: Bus,
    *,
    since_s: int,
    by: str,
    points: bool,
    prices: Mapping[str, float] = MappingProxyType({}),
    within_s: float = ANSWER_WITHIN_S,
) -> ReportDocument:
    """The recorder's answer. Raises BusError, NotAskableError."""
    request = pb.ReportRequest(from_unix=int(time.time()) - since_s, by=KEYS[by], points=points)
    async with recorder(bus) as asked:
        return report_document(await asked.Report(request, timeout=within_s), by, prices)


def read_prices(path: Path) -> dict[str, float]:
    """Prices per GPU hour by model, from a TOML table `[prices]`. Raises PricesError."""
    try:
        document = parse_toml(read_named_text(path, TOML_BYTES_MAX))
    except OSError as error:
        raise PricesError(f"--prices {path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise PricesError(f"--prices {path}: {error}") from error
    prices = document.get("prices")
    if not isinstance(prices, Mapping) or not prices:
        raise PricesError(f'--prices {path}: has no table [prices], such as "A100-SXM4-40GB" = 1.80 per GPU hour')
    for model, price in prices.items():
        if isinstance(price, bool) or not isinstance(price, int | float) or not 0 <= price < float("inf"):
            raise PricesError(f"--prices {path}: {model} = {price!r} must be a number per GPU hour, 0 or more")
    return {str(model): float(price) for model, price in prices.items()}


def _write_csv(document: ReportDocument) -> None:
    csv.writer(sys.stdout, lineterminator="\n").writerows(report_table(document))


def _show(document: ReportDocument) -> None:
    out = console()
    out.print(f"{document.start} to {document.end} (UTC)")
    header = "" if document.by == "all" else document.by.upper()
    show_table(out, (header, *COLUMNS), [tuple(map(said, report_cells(row))) for row in document.rows])
