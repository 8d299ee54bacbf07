"""`sluice trace`: the waterfall of a request, from the history of the bus."""

import shutil
import sys

from sluice.contracts.messages import Bound
from sluice_console.core.fleet.fleet_state import FleetState
from sluice_console.core.fleet.pods import pods_document
from sluice_console.core.history.sentences import HistoryMessage
from sluice_console.core.history.waterfall import PartDocument, WaterfallDocument, bars, duration, waterfall
from sluice_console.core.output.sanitize import sanitize
from sluice_console.shell.inspect.look_up import found_among, with_past
from sluice_console.shell.output.answer import Answer
from sluice_console.shell.output.printer import PIPE_WIDTH, console, said

_STYLES = {"wait": "dim", "step": "cyan", "word": "green"}
_TEXT_WIDTH = 62
"""Columns of a line besides its bar."""
_TITLES = {
    "request": "from the pod's first event to its open gate",
    "running": "while it ran",
    "release": "from its end to its last message",
}


async def trace(_url: str, wanted: str, fleet_state: FleetState, history: list[HistoryMessage]) -> Answer:
    """The waterfall of every request that `wanted` matches. Raises NotFoundError."""
    pods = with_past(pods_document(fleet_state, with_ended=True), history)
    return Answer(tuple(waterfall(pod, history) for pod in found_among(pods, wanted)), show)


def show(document: WaterfallDocument) -> None:
    """All parts, a line per span."""
    out = console()
    unicode = (out.encoding or "").lower().replace("-", "") == "utf8"
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else PIPE_WIDTH
    name = f"{document.namespace}/{document.name}" if document.name else document.request
    out.print(said(name, style="bold"), said(f"({document.request})"))
    for part in document.parts:
        out.print(said(f"{_title(part)}: {duration(part.took_ms)}", style="bold"))
        out.print(said(f"  began {part.began}, trace {part.trace_id}", style="dim"))
        if part.left_out:
            out.print(said(f"  {part.left_out} earlier spans are not shown", style="dim"))
        for line in bars(part, columns - _TEXT_WIDTH, unicode=unicode):
            text = said(
                f"  {sanitize(line.service):<12}{sanitize(line.name)[:25]:<26}{line.began:>10}{line.took:>10}  "
            )
            text.append(line.bar.rstrip(), style=_STYLES[line.kind])
            out.print(text)
    if not document.parts:
        out.print("the history no longer has it")


def _title(part: PartDocument) -> str:
    """What the part's time is; a pod without a slice has come as far as its last message."""
    if part.part == "request" and all(span.name != Bound.__name__ for span in part.spans):
        return "from the pod's first event to its last message so far; it has no slice"
    return _TITLES[part.part]
