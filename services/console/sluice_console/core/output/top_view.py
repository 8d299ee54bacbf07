"""State of `sluice top`: the view, its first line, and what a key changes. Independent of a terminal."""

from dataclasses import dataclass, replace
from typing import Literal, get_args

from sluice_console.core.documents import GpusDocument, PodsDocument

View = Literal["gpus", "pods", "nodes", "quotas", "usage"]
VIEWS: tuple[View, ...] = get_args(View)
HELP = "q quit  1 gpus 2 pods 3 nodes 4 quotas 5 usage  arrows space g G move  p pause"
FRAME_LINES = 2
"""Lines besides the view: the heading and the keys."""

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
    "4": "quotas",
    "5": "usage",
    "p": "pause",
    "q": "quit",
    "\x03": "quit",
    "\x04": "quit",
}
"""What a terminal sends (ECMA-48, xterm's control sequences), by the key's meaning."""


def keys_of(typed: str) -> tuple[list[str], str]:
    """The keys in the input, and the start of an incomplete one. Unknown keys are left out."""
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
    """Length of an unknown key: of an escape sequence, up to its final letter."""
    if not typed.startswith(("\x1b[", "\x1bO")):
        return 1
    for at, character in enumerate(typed[2:], start=2):
        if "@" <= character <= "~":
            return at + 1
    return len(typed)


@dataclass(frozen=True, slots=True)
class TopView:
    """The view."""

    view: View = "gpus"
    first: int = 0
    """First line shown."""
    paused: bool = False
    over: bool = False

    def press(self, key: str, *, lines: int, room: int) -> "TopView":
        """The state after a key, for a view of so many lines, of which `room` fit."""
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
        """The lines that fit."""
        first = min(self.first, max(0, len(lines) - room))
        return lines[first : first + room]


def heading(gpus: GpusDocument, pods: PodsDocument, *, connected: bool) -> str:
    """The fleet in one line. Problems come first: a narrow terminal cuts the end."""
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
