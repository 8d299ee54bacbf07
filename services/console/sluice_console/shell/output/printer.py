"""Print to people: colour on a terminal, plain text in a pipe, the same words in both."""

import contextlib
import sys
import time
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sluice.contracts.reason_hints import hint_for
from sluice_console.core.documents import (
    GpusDocument,
    PodsDocument,
    QuotasDocument,
    SimulatedDocument,
    StoryDocument,
)
from sluice_console.core.fleet.pods import variables_text
from sluice_console.core.fleet.usage import COLUMNS as USAGE_COLUMNS
from sluice_console.core.fleet.usage import UsagesDocument, duration_text, usage_cells
from sluice_console.core.operate.quotas import quota_cells
from sluice_console.core.output.gpu_picture import Line, compact_picture, picture
from sluice_console.core.output.sanitize import sanitize
from sluice_console.core.output.wide import ages, pod_name, slices_text
from sluice_console.core.simulate.answers import out_lines, proposal_lines, reason_text, simulated_lines

PALETTE = ("cyan", "green", "magenta", "yellow", "blue", "red", "bright_cyan", "bright_green", "bright_magenta")
_STATES = {"bound": "green", "waiting": "yellow", "making": "yellow", "refused": "red", "ending": "dim"}
_ANSWERS = {"bound": "green", "pending": "yellow", "refused": "red", "nothing": "dim"}
PIPE_WIDTH = 160
FOLDED_MIN = 40
"""Minimum width of a sentence's column."""


def console() -> Console:
    """Standard output. In a pipe it is wide, so that nothing is cut and lines can be searched."""
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return Console(highlight=False, soft_wrap=True, width=width)


def said(text: str, style: str = "") -> Text:
    """A line with untrusted text, safe for a terminal."""
    return Text(sanitize(text), style=style)


def show_table(
    out: Console, columns: Sequence[str], rows: Sequence[tuple[Text, ...]], *, fold_last: bool = False
) -> None:
    """A table; the last column is folded on request. Names and numbers are never shortened.

    A row wider than the terminal wraps; where lines are cut (`sluice top`) columns shrink."""
    table = Table(box=None, pad_edge=False, show_edge=False)
    for number, column in enumerate(columns, 1):
        folds = fold_last and number == len(columns)
        table.add_column(column, no_wrap=not folds, overflow="fold" if folds else "ellipsis")
    for row in rows:
        table.add_row(*row)
    lines = [tuple(map(Text, columns)), *rows]
    widths = [max(line[at].cell_len for line in lines) for at in range(len(columns))]
    if fold_last:
        widths[-1] = min(widths[-1], FOLDED_MIN)
    least = sum(widths) + 2 * (len(widths) - 1)
    if out.soft_wrap and least > out.width:
        table.width = least
    elif least > out.width:
        for _ in range(least - out.width):
            widths[widths.index(max(widths))] -= 1  # Rich takes the same from each: the state of a pod would go first
        for shown, width in zip(table.columns, widths, strict=True):
            shown.width = width
    out.print(table)


def show_gpus(out: Console, document: GpusDocument, *, compact: bool = False) -> None:
    """The picture of all GPUs; `compact`: one line per GPU."""
    unicode = (out.encoding or "").lower().replace("-", "") == "utf8"
    for line in (compact_picture if compact else picture)(document, unicode=unicode):
        out.print(_text(line))


def _text(line: Line) -> Text:
    text = Text()
    for piece in line:
        text.append(sanitize(piece.text), style=_style(piece.kind))
    return text


def _style(kind: str) -> str:
    if kind.startswith("taken:"):
        return f"black on {PALETTE[int(kind.removeprefix('taken:')) % len(PALETTE)]}"
    return {"title": "bold", "free": "dim", "warn": "bold red"}.get(kind, "")


def show_pods(out: Console, document: PodsDocument, *, none: str = "no pod asks for a slice") -> None:
    """One row per request."""
    if not document.pods:
        out.print(none)
        return
    now_s = time.time()
    rows = []
    for pod in document.pods:
        state = said(pod.state, style=_STATES.get(pod.state, ""))
        what = said(pod.message)
        for warning in pod.warnings:
            what.append(f"\nwarning: {sanitize(warning)}", style="yellow")
        rows.append((said(pod_name(pod)), state, *map(said, (*ages(pod, now_s), pod.node, slices_text(pod))), what))
    show_table(out, ("POD", "STATE", "AGE", "WAITED", "NODE", "SLICE", "WHAT"), rows, fold_last=True)


def show_story(out: Console, story: StoryDocument) -> None:
    """The story of one request, and its present state."""
    pod = story.pod
    out.print(said(f"{pod.namespace}/{pod.name}" if pod.name else pod.origin, style="bold"), said(f"({pod.request})"))
    if story.earlier is not None:
        why = f": {story.earlier.cause}" if story.earlier.cause else ""
        out.print(said(f"  before it, {story.earlier.request} of the same name was evicted{why}"))
    for step in story.steps:
        out.print(said(f"  {short_time(step.time)}  {step.text}"))
    out.print(said(f"now: {pod.message}", style=_STATES.get(pod.state, "")))
    for line in _why(story):
        out.print(said(f"  {line}"))
    for part in pod.containers:
        for line in variables_text(part):
            out.print(said(f"  container {part.container}: {line}"))
    for warning in pod.warnings:
        out.print(said(f"  warning: {warning}", style="yellow"))


def _why(story: StoryDocument) -> list[str]:
    """Why it waits: the allocator's present answer, filter by filter; otherwise the last message on the bus."""
    now = story.standing
    if now is not None and now.state == "bound" and ";" in now.message:
        return [f"the allocator says now: it {now.message}"]
    helps = [f"what helps: {remedy}"] if (remedy := hint_for(story.pod.reasons)) else []
    if now is None or not now.steps:
        return [*(reason_text(reason) for reason in story.pod.reasons), *helps]
    news = [] if now.message == story.pod.message else [f"the allocator says now: {now.message}"]
    queue = f"in the queue: {now.ahead} before it ({now.before} of its kind), {now.waiting} in all"
    proposed = proposal_lines(now.proposal) if now.proposal is not None else []
    freeing = [f"being freed: {each}" for each in story.freeing]
    return [*news, *([queue] if now.waiting else []), *out_lines(now.steps, now.more), *freeing, *helps, *proposed]


def show_quotas(out: Console, document: QuotasDocument, namespace: str | None = None) -> None:
    """One row per namespace, or for one of them: usage and quota."""
    if not document.quotas:
        none = "no namespace has limits or devices"
        out.print(said(none if namespace is None else f"namespace {namespace} has no limits and no devices"))
        return
    columns = ("NAMESPACE", "DEVICES", "MEMORY", "COMPUTE SLICES", "ONE POD", "GUARANTEED", "PRIORITY")
    rows = [(quota.namespace, *quota_cells(quota)) for quota in document.quotas]
    show_table(out, columns, [tuple(map(said, row)) for row in rows])


def show_usage(out: Console, document: UsagesDocument, idle_s: float | None) -> None:
    """One row per slice, or per one that idles for `idle_s`."""
    if not document.slices:
        out.print("no slice is ready" if idle_s is None else f"no slice has idled for {duration_text(idle_s)}")
        return
    show_table(out, USAGE_COLUMNS, [tuple(map(said, usage_cells(each))) for each in document.slices])


def show_simulated(out: Console, document: SimulatedDocument) -> None:
    """The predicted outcome of each pod of a file."""
    for pod in document.pods:
        first, *rest = simulated_lines(pod)
        out.print(said(first, style=_ANSWERS[pod.answer]))
        for line in rest:
            out.print(said(line))
    if not document.pods:
        out.print("there is no pod in it")


def write_lines(lines: Iterable[str]) -> None:
    """Plain lines to standard output."""
    sys.stdout.write("".join(f"{sanitize(line)}\n" for line in lines))


def short_time(at: str) -> str:
    """`12:34:56.789` of an ISO 8601 time in UTC, with the day if that is not today."""
    day, _, hour = at.partition("T")
    shown = (hour[:12] or at).rstrip("Z").ljust(12)
    return shown if not hour or day == time.strftime("%Y-%m-%d", time.gmtime()) else f"{day} {shown}"


def say(lines: Iterable[str]) -> None:
    """Plain lines to standard error, for progress. Dropped if stderr is closed."""
    with contextlib.suppress(OSError):
        for line in lines:
            print(sanitize(line), file=sys.stderr, flush=True)
