"""Prints a benchmark's results: a table or one JSON document, and a chart."""

import asyncio
from pathlib import Path
from typing import Literal

from rich.table import Table

from sluice_console.core.bench.chart import svg as picture_of
from sluice_console.core.bench.figures import BenchDocument, SpreadDocument
from sluice_console.core.history.waterfall import duration
from sluice_console.shell.bench.bench import BenchOptions, bench
from sluice_console.shell.errors import CommandError
from sluice_console.shell.output.formats import OutputFormat, print_document
from sluice_console.shell.output.printer import console, say


async def bench_and_show(asked: BenchOptions, *, svg: Path | None, form: OutputFormat) -> int:
    """`sluice bench`. Raises CommandError, BusError."""
    if svg is not None:
        await asyncio.to_thread(_write, svg, "", "a")  # before minutes are spent on a result that cannot be written
    result = await bench(asked, lambda line: say([line]))
    if svg is not None:
        text = picture_of(result.document, result.ours_s, result.bare_s)
        await asyncio.to_thread(_write, svg, text)
    print_document(result.document, form, show)
    return 0 if is_fine(result.document) else 1


def _write(file: Path, text: str, mode: Literal["w", "a"] = "w") -> None:
    try:
        with file.open(mode, encoding="utf-8") as opened:
            opened.write(text)
    except OSError as error:
        raise CommandError(f"--svg {file} cannot be written: {error.strerror}") from error


def is_fine(document: BenchDocument) -> bool:
    """Whether every pod was served, nothing was allocated twice, and everything was released."""
    served = document.bound + document.refused >= document.requests
    return served and document.overcommitted == 0 and document.released


def show(document: BenchDocument) -> None:
    """A table of the hops, and sentences."""
    out = console()
    table = Table(box=None, pad_edge=False, show_edge=False)
    for column in ("", "p50", "p90", "p99", "MAX"):
        table.add_column(column, no_wrap=True, justify="left" if not column else "right")
    for hop in document.hops:
        table.add_row(hop.hop, *_cells(hop.ms))
    if document.ceiling is not None:
        table.add_row("the same on a bare broker", *_cells(document.ceiling.ms))
    out.print(table)
    refused = f", {document.refused} refused" if document.refused else ""
    out.print(
        f"{document.bound} of {document.requests} bound{refused} in {document.seconds:g} s: {document.per_second:g}/s"
    )
    if document.ceiling is not None:
        bare = document.ceiling
        out.print(f"bare broker: {bare.messages} messages in {bare.seconds:g} s: {bare.per_second:g} requests/s")
        out.print(
            f"median {document.latency_ratio_p50:g} times the bare broker's, "
            f"throughput {document.throughput_ratio:g} of it"
        )
    if document.overcommitted:
        out.print(f"{document.overcommitted} memory slices were allocated twice", style="bold red")
    if not document.released:
        out.print("not everything was released", style="bold red")


def _cells(spread: SpreadDocument) -> tuple[str, ...]:
    return tuple(duration(each) for each in (spread.p50, spread.p90, spread.p99, spread.max))
