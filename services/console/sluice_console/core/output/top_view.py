"""What `sluice top` shows: which view, from which line on, and what a key changes. Knows no terminal."""

from dataclasses import dataclass, replace
from typing import Literal

from sluice_console.core.documents import GpusDocument, PodsDocument

View = Literal["gpus", "pods", "nodes"]
VIEWS: tuple[View, ...] = ("gpus", "pods", "nodes")
HELP = "q quit   1 gpus  2 pods  3 nodes   tab next   arrows, space, g, G move   p pause"
FRAME_LINES = 2
"""Above and below what is shown: the heading and the keys."""

KEYS = {
    "\x1b[A": "up",
    "\x1bOA": "up",
    "k": "up",
    "\x1b[B": "down",
    "\x1bOB": "down",
    "j": "down",
    "\x1b[5~": "page up",
    "b": "page up",
    "\x1b[6~": "page down",
    " ": "page down",
    "\x1b[H": "first",
    "g": "first",
    "\x1b[F": "last",
    "G": "last",
    "\t": "next",
    "1": "gpus",
    "2": "pods",
    "3": "nodes",
    "p": "pause",
    "q": "quit",
    "\x03": "quit",
    "\x04": "quit",
}
"""What a terminal sends (ECMA-48, xterm's control sequences), and what it means here."""


def keys_of(typed: str) -> tuple[list[str], str]:
    """The keys in what was typed, and the beginning of one that is not complete yet. What means nothing is left out."""
    found = []
    while typed:
        longest = max((key for key in KEYS if typed.startswith(key)), key=len, default="")
        if longest:
            found.append(KEYS[longest])
            typed = typed[len(longest) :]
        elif any(key.startswith(typed) for key in KEYS):
            return found, typed
        else:
            typed = typed[_unknown(typed) :]
    return found, ""


def _unknown(typed: str) -> int:
    """How long a key is that means nothing: of an escape sequence, up to its final letter."""
    if not typed.startswith(("\x1b[", "\x1bO")):
        return 1
    for at, character in enumerate(typed[2:], start=2):
        if "@" <= character <= "~":
            return at + 1
    return len(typed)


@dataclass(frozen=True, slots=True)
class TopView:
    """What is looked at."""

    view: View = "gpus"
    first: int = 0
    """The first line that is shown."""
    paused: bool = False
    over: bool = False

    def press(self, key: str, *, lines: int, room: int) -> "TopView":
        """After a key, with so many lines in the view, of which `room` are shown."""
        last = max(0, lines - room)
        to = {
            "up": self.first - 1,
            "down": self.first + 1,
            "page up": self.first - room,
            "page down": self.first + room,
            "first": 0,
            "last": last,
        }
        if key in to:
            return replace(self, first=min(last, max(0, to[key])))
        if key == "quit":
            return replace(self, over=True)
        if key == "pause":
            return replace(self, paused=not self.paused)
        if key == "next":
            key = VIEWS[(VIEWS.index(self.view) + 1) % len(VIEWS)]
        for view in VIEWS:
            if key == view:
                return replace(self, view=view, first=0)
        return self

    def shown(self, lines: list[str], room: int) -> list[str]:
        """The lines that fit, as far as there are that many."""
        first = min(self.first, max(0, len(lines) - room))
        return lines[first : first + room]


def heading(gpus: GpusDocument, pods: PodsDocument, *, connected: bool) -> str:
    """The state of the fleet in one line. What is wrong comes first: on a narrow terminal its end is cut."""
    slices = sum(gpu.memory_slices for gpu in gpus.gpus)
    used = sum(gpu.allocated_fraction * gpu.memory_slices for gpu in gpus.gpus)
    ill = sum(not gpu.healthy for gpu in gpus.gpus)
    stale = sum(node.stale for node in gpus.nodes)
    parts = [] if connected else ["NO BROKER: the last known state"]
    parts += [f"{_count(ill, 'GPU')} ill"] if ill else []
    parts += [f"{_count(stale, 'node')} stale"] if stale else []
    parts += [
        f"{_count(len(gpus.nodes), 'node')}, {_count(len(gpus.gpus), 'GPU')}",
        f"{used / slices:.0%} in use" if slices else "nothing to use",
        _pods(pods),
    ]
    return "sluice  " + "  |  ".join(parts)


def _pods(pods: PodsDocument) -> str:
    by_state: dict[str, int] = {}
    for pod in pods.pods:
        by_state[pod.state] = by_state.get(pod.state, 0) + 1
    states = ", ".join(f"{count} {state}" for state, count in sorted(by_state.items()) if state != "bound")
    return _count(len(pods.pods), "pod") + (f" ({states})" if states else "")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
