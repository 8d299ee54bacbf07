"""
Draws the SVG pictures of README.md and docs/: `.venv/bin/python tools/drawings.py`, or with `--check` compares.

Facts about hardware come from `sluice.mig`, facts about the bus from `sluice.contracts.bus.streams`.
Each picture has its own background and follows `prefers-color-scheme`, so it reads in light and in dark.
"""

import sys
from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path

from sluice.contracts.bus.events import Stream
from sluice.contracts.bus.streams import SUBJECT_KINDS, Role, SubjectKind
from sluice.mig.catalog import find_model
from sluice.mig.layout import Instance
from sluice.mig.model import GpuModel
from sluice.mig.transition_table import table_of

HERE = Path(__file__).resolve().parents[1] / "docs" / "images"
STYLE = """
  svg { --bg: #fff; --ink: #1b2430; --soft: #5b6775; --line: #b8c1cc; --box: #f3f5f8;
        --a: #2f6fdb; --b: #1f8a5b; --c: #b4581a; --d: #7a4bc2; --free: #e3e8ee; color-scheme: light dark; }
  @media (prefers-color-scheme: dark) { svg { --bg: #12171e; --ink: #e6ebf1; --soft: #9aa7b5; --line: #465160;
        --box: #1d2530; --a: #6aa1ff; --b: #4cc48d; --c: #ef9a5a; --d: #b592f5; --free: #27313d; } }
  .bg { fill: var(--bg) } .box { fill: var(--box); stroke: var(--line) } .free { fill: var(--free) }
  .a { fill: var(--a) } .b { fill: var(--b) } .c { fill: var(--c) } .d { fill: var(--d) }
  .line { stroke: var(--soft); fill: none; stroke-width: 1.5 } .thin { stroke: var(--line); stroke-width: 1 }
  .ring { fill: none; stroke: var(--ink); stroke-width: 1.5 } .dot, .tip { fill: var(--ink) }
  text { font: 13px system-ui, sans-serif; fill: var(--ink) } .soft { fill: var(--soft) } .on { fill: var(--bg) }
  .head { font-weight: 600 } .code { font: 12px ui-monospace, monospace } .small { font-size: 11.5px }
"""
Shapes = Iterator[str]


# -- shapes -----------------------------------------------------------------------------------------------------------


def box(x: float, y: float, width: float, height: float, kind: str = "box") -> str:
    """A rectangle."""
    radius = {"box": 6, "bg": 0}.get(kind, 4)
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius:g}" class="{kind}"/>'


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    """One line; `y` is its base."""
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def middle(x: float, y: float, words: str, kind: str = "") -> str:
    """One line around `x`."""
    return text(x, y, words, kind, "middle")


def arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    """A straight line with a tip at its end."""
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" class="line" marker-end="url(#tip)"/>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str = "thin") -> str:
    """A straight line."""
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" class="{kind}"/>'


def picture(width: int, height: int, title: str, shapes: Iterable[str]) -> str:
    """A whole file. `title` is what a screen reader says."""
    tip = (
        '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 8 4 0 8z" class="tip"/></marker>'
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>{STYLE}</style>",
            f"<defs>{tip}</defs>",
            box(0, 0, width, height, "bg"),
            *shapes,
            "</svg>\n",
        ]
    )


# -- README.md --------------------------------------------------------------------------------------------------------


def overview() -> Shapes:
    """From a pod to its slice."""
    yield from (box(24, 40, 190, 92), text(38, 62, "Pod", "head"))
    yield from (text(38, 86, "sluice.dev/memory:", "code"), text(38, 104, '  "16Gi"', "code"))
    yield text(38, 123, "waits behind a gate", "soft small")
    stages = (
        (264, "pod-watcher", ("reads the pod,", "opens its gate")),
        (444, "allocator", ("filters, scores,", "books a place")),
        (624, "node-agent", ("calls NVML: GPU and", "compute instance")),
    )
    for x, name, does in stages:
        yield from (box(x, 40, 150, 92), text(x + 14, 62, name, "head"))
        yield from (text(x + 14, 86 + 18 * at, words, "soft small") for at, words in enumerate(does))
        yield from (arrow(x + 66, 132, x + 66, 172), arrow(x + 84, 172, x + 84, 134))
    yield from (arrow(214, 76, 262, 76), arrow(264, 98, 216, 98))
    yield from (box(264, 174, 466, 44), text(278, 201, "NATS", "head"))
    yield text(324, 201, "the last message of each subject is its state", "soft small")
    yield arrow(752, 132, 752, 256)
    yield text(24, 156, "then: its devices, its node,", "soft small")
    yield text(24, 174, "and the gate opens", "soft small")
    yield text(24, 251, "One A100: eight memory slices", "soft small")
    slices = (("train", 0, 4, "a", "4g.20gb"), ("by-memory", 4, 4, "b", "3g.20gb  ← cut for the pod"))
    for name, start, size, kind, profile in slices:
        x, width = 24 + start * 93.75, size * 93.75
        yield from (box(x + 1, 260, width - 2, 44, kind), text(x + 14, 287, name, "on head"))
        yield text(x + width - 14, 287, profile, "on code", "end")


# -- docs/life-of-a-pod.md --------------------------------------------------------------------------------------------

LANES = ("API server", "pod-watcher", "NATS", "allocator", "node-agent", "GPU")
STEPS = (
    (0, 1, "1  AdmissionReview: adds the gate"),
    (0, 1, "2  watch: a gated pod"),
    (1, 2, "3  AllocationRequested"),
    (2, 3, "4  reconcile, queue"),
    (3, 3, "5  filter, score"),
    (3, 2, "6  Grant (guarded)"),
    (2, 4, "7  the order, from the ledger"),
    (4, 5, "8  create GI, CI; read back"),
    (4, 2, "9  SliceReady"),
    (3, 2, "10  Bound"),
    (2, 1, "11  the binding"),
    (1, 0, "12  patch: devices, pin, gate"),
    (0, 1, "13  watch: the pod ended"),
    (1, 2, "14  RequestWithdrawn"),
    (3, 2, "15  Revoke"),
    (4, 5, "16  no process left; destroy"),
    (4, 2, "17  SliceGone"),
    (3, 2, "18  Closed, Released"),
)


def life() -> Shapes:
    """Who speaks to whom, in order."""
    at = [70 + 152 * number for number in range(len(LANES))]
    bottom = 76 + 34 * len(STEPS)
    for x, name in zip(at, LANES, strict=True):
        yield from (box(x - 56, 20, 112, 30), middle(x, 40, name, "head"), line(x, 50, x, bottom))
    for number, (start, end, words) in enumerate(STEPS):
        y = 84 + 34 * number
        if start == end:
            yield from (box(at[start] - 62, y - 17, 124, 24), middle(at[start], y, words, "small"))
            continue
        yield arrow(at[start], y, at[end], y)
        left, right = sorted((at[start], at[end]))
        half = 3.2 * len(words)
        center = min(max((left + right) / 2, half + 8), at[-1] + 48 - half)
        yield from (box(center - half, y - 19, 2 * half, 15, "bg"), middle(center, y - 7, words, "small"))


# -- docs/mig.md ------------------------------------------------------------------------------------------------------

MODEL = "a100-40gb"
UNIT = 78
LEFT = 150


def _bar(y: float, instances: Iterable[Instance], kinds: Iterable[str], size: int) -> Shapes:
    for slot in range(size):
        yield box(LEFT + slot * UNIT + 1, y, UNIT - 2, 26, "free")
    for instance, kind in zip(instances, kinds, strict=True):
        x, width = LEFT + instance.start * UNIT, instance.size * UNIT
        yield box(x + 1, y, width - 2, 26, kind)
        yield middle(x + width / 2, y + 18, instance.profile, "on code")


def _fits(model: GpuModel, instances: list[Instance]) -> str:
    table = table_of(model)
    found = table.creatable(table.state(instances))
    shown = [f"{count} x {name}" for name, count in found.items() if count and "+" not in name]
    return "still fits, one kind at a time: " + ", ".join(shown)


def mig() -> Shapes:
    """Profiles and their places on one model; and the same two instances placed well and badly."""
    model = find_model(MODEL)
    assert model is not None
    slots = max(place.start + place.size for profile in model.profiles for place in profile.placements)
    yield text(20, 34, "One A100 of 40 GB: each bar is a place that the profile can have", "head")
    yield text(20, 58, "memory slices", "soft")
    yield from (middle(LEFT + (slot + 0.5) * UNIT, 58, str(slot), "soft code") for slot in range(slots))
    y = 70
    for number, profile in enumerate(each for each in reversed(model.profiles) if "+" not in each.name):
        yield text(20, y + 18, profile.name, "code")
        rows: list[list[Instance]] = []
        for place in sorted(profile.placements, key=lambda each: each.start):
            row = next((row for row in rows if row[-1].start + row[-1].size <= place.start), None)
            if row is None:
                rows.append(row := [])
            row.append(Instance(profile.name, place.start, place.size))
        for row in rows:
            yield from _bar(y, row, ["abcd"[number % 4]] * len(row), slots)
            y += 32
    for title, starts in (("placed anywhere", (0, 4)), ("placed by Sluice", (6, 5))):
        placed = [Instance("1g.5gb", start, 1) for start in sorted(starts)]
        yield text(20, y + 34, f"Two 1g.5gb, {title}", "head")
        yield from _bar(y + 44, placed, ["c"] * len(placed), slots)
        yield text(LEFT, y + 90, _fits(model, placed), "soft small")
        y += 88


# -- docs/bus.md ------------------------------------------------------------------------------------------------------

COLUMNS = (
    (Role.POD_WATCHER, "pod-watcher"),
    (Role.ALLOCATOR, "allocator"),
    (Role.NODE_AGENT, "node-agent"),
    (Role.INVENTORY, "inventory"),
    (Role.OPERATOR, "operators"),
)


def _noun(noun: SubjectKind, y: float) -> Shapes:
    key = ".".join(f"<{part.split(',')[0]}>" for part in noun.key)
    yield from (text(36, y, f"sluice.{noun.kind}.{key}", "code"), line(24, y + 10, 876, y + 10))
    for number, (role, _) in enumerate(COLUMNS):
        x = 400 + 108 * number
        if role in noun.writers:
            yield f'<circle cx="{x}" cy="{y - 4:g}" r="7" class="dot"/>'
        elif role in noun.readers:
            yield f'<circle cx="{x}" cy="{y - 4:g}" r="6" class="ring"/>'


def bus() -> Shapes:
    """Every subject: its stream, who writes it and who reads it."""
    yield from (middle(400 + 108 * number, 32, name, "head") for number, (_, name) in enumerate(COLUMNS))
    y = 60.0
    for stream, says in ((Stream.BOOK, "what was decided"), (Stream.STATE, "what is")):
        yield from (box(14, y - 18, 872, 24), text(24, y, stream.value, "head"), text(84, y, says, "soft"))
        y += 30
        for noun in SUBJECT_KINDS:
            if noun.stream is stream:
                yield from _noun(noun, y)
                y += 28
        y += 12
    yield from (f'<circle cx="34" cy="{y - 4:g}" r="7" class="dot"/>', text(50, y, "writes (and reads)", "soft"))
    yield from (f'<circle cx="206" cy="{y - 4:g}" r="6" class="ring"/>', text(222, y, "reads", "soft"))
    yield text(290, y, "HISTORY has a copy of every accepted message under hist.sluice.>, for people", "soft")


def drawings() -> dict[str, str]:
    """Every picture by its file."""
    rows = len(SUBJECT_KINDS)
    return {
        "overview.svg": picture(800, 324, "From a pod's request to the slice that is cut for it", overview()),
        "life-of-a-pod.svg": picture(900, 100 + 34 * len(STEPS), "The life of a pod, as messages", life()),
        "mig.svg": picture(800, 470, "MIG profiles and placements of an A100, and why placement matters", mig()),
        "bus.svg": picture(900, 150 + 28 * rows, "Subjects by stream, with their writers and readers", bus()),
    }


def main() -> int:
    """Write, or compare; 1 when a picture differs from what this draws."""
    old = [name for name, drawn in drawings().items() if not _same(HERE / name, drawn)]
    if "--check" in sys.argv[1:]:
        sys.stderr.writelines(f"docs/images/{name} is not what tools/drawings.py draws\n" for name in old)
        return bool(old)
    for name, drawn in drawings().items():
        (HERE / name).write_text(drawn, encoding="utf-8")
    return 0


def _same(path: Path, drawn: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == drawn


if __name__ == "__main__":
    sys.exit(main())
