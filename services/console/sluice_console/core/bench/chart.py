"""The chart of a benchmark as SVG: the share of requests served over time, with the bare broker for comparison."""

from collections.abc import Sequence
from xml.sax.saxutils import escape

from sluice_console.core.bench.figures import BenchDocument
from sluice_console.core.history.waterfall import duration

WIDTH, HEIGHT = 720, 420
LEFT, TOP, RIGHT, BOTTOM = 60, 70, 24, 110
OURS, BARE = "#0072b2", "#e69f00"
"""From Okabe and Ito's palette for colour-blind people (https://jfly.uni-koeln.de/color/)."""
POINTS_MAX = 400
"""Points of a line: more are not visible."""


def svg(document: BenchDocument, ours_s: Sequence[float], bare_s: Sequence[float]) -> str:
    """The share of requests that took at most so long; dashed is the bare broker. Times in s."""
    most_s = max([*ours_s, *bare_s, 1e-4])
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
            'font-family="system-ui, sans-serif" font-size="12">'
        ),
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        _text(LEFT, 26, f"{document.bound} of {document.requests} requests bound in {document.seconds:g} s", size=16),
        _text(LEFT, 46, _subtitle(document)),
    ]
    for percent in (0, 25, 50, 75, 100):
        y = TOP + high * (100 - percent) / 100
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#dddddd"/>')
        parts.append(_text(LEFT - 8, y + 4, f"{percent} %", anchor="end"))
    for quarter in range(5):
        x = LEFT + wide * quarter / 4
        parts.append(_text(x, TOP + high + 18, duration(most_s * 1000 * quarter / 4), anchor="middle"))
    for times, colour, dash in ((bare_s, BARE, ' stroke-dasharray="6 4"'), (ours_s, OURS, "")):
        if times:
            line = " ".join(f"{LEFT + wide * x:.1f},{TOP + high * (1 - y):.1f}" for x, y in _steps(times, most_s))
            parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
    parts += _legend(document)
    return "\n".join([*parts, "</svg>", ""])


def _steps(times: Sequence[float], most_s: float) -> list[tuple[float, float]]:
    """The line's points: time and share, both 0 to 1."""
    ordered = sorted(times)
    every = max(1, len(ordered) // POINTS_MAX)
    points = [(each / most_s, (at + 1) / len(ordered)) for at, each in enumerate(ordered)]
    return [(0.0, 0.0), *points[::every], points[-1]]


def _legend(document: BenchDocument) -> list[str]:
    y = HEIGHT - BOTTOM + 44
    rows = [(OURS, "", f"Sluice: {_spread(document)}")]
    bare = document.ceiling
    if bare is not None:
        told = f"bare broker, {bare.messages} messages: p50 {duration(bare.ms.p50)}, p99 {duration(bare.ms.p99)}"
        ratios = f"{document.latency_ratio_p50:g} times its median, {document.throughput_ratio:g} of its throughput"
        rows += [(BARE, ' stroke-dasharray="6 4"', told), ("", "", ratios)]
    parts = []
    for number, (colour, dash, text) in enumerate(rows):
        at = y + 20 * number
        if colour:
            parts.append(
                f'<line x1="{LEFT}" y1="{at - 4}" x2="{LEFT + 28}" y2="{at - 4}" stroke="{colour}" '
                f'stroke-width="2"{dash}/>'
            )
        parts.append(_text(LEFT + 38, at, text))
    return parts


def _spread(document: BenchDocument) -> str:
    if not document.hops:
        return "no pod was bound"
    whole = document.hops[-1].ms
    return f"p50 {duration(whole.p50)}, p90 {duration(whole.p90)}, p99 {duration(whole.p99)}"


def _subtitle(document: BenchDocument) -> str:
    came = f"{document.rate:g} a second" if document.rate else "all at once"
    return f"{document.nodes} nodes, {document.gpus} GPUs, {document.agents} agent processes; {came}; {document.mix}"


def _text(x: float, y: float, text: str, *, size: int = 12, anchor: str = "start") -> str:
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" fill="#222222">{escape(text)}</text>'
