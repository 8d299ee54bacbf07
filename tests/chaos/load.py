"""Pods that come and go as a seed draws them; when their manifests were written and removed is the truth."""

import asyncio
import json
import time
from pathlib import Path
from random import Random

from chaos.recorder import Word

LIVING_MAX = 14
"""Pods that are there or not wholly gone: less than the fleet has room for, so that none has to wait for a place."""
GAP_MEAN_S = 0.8
LIFE_MEAN_S = 12.0
VISIT_S = 2.0
MEMORY = "4Gi"
ASKS = (
    ({"profile": "1g.5gb"}, 12),
    ({"profile": "2g.10gb"}, 3),
    ({"profile": "3g.20gb"}, 1),
    ({"mode": "mps", "memory": MEMORY}, 2),
    ({"mode": "fractional", "sm-partition": "20", "memory": MEMORY}, 1),
)
"""What pods ask for, and how often."""
MANIFEST = """apiVersion: v1
kind: Pod
metadata:
  name: {name}
  annotations: {{ {annotations} }}
spec:
{where}  containers: [{{ name: main, image: train:latest }}]
"""


class Load:
    """The pods of one run."""

    def __init__(self, folder: Path, seed: int, truth: Path) -> None:
        """No pod yet. What is done is written to `truth`."""
        self._folder = folder
        self._dice = Random(f"pods {seed}")
        self._truth = truth
        self._number = 0
        self._ends: dict[str, float] = {}
        """Pods that go by themselves, and when."""
        self.living: dict[str, float] = {}
        """Pods whose manifest is there, since when."""
        self._requests: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._bound: dict[str, tuple[float, str]] = {}
        self._held: dict[str, str] = {}
        """Allocations that are not wholly gone, with their requests."""

    # -- what the bus says --------------------------------------------------------------------------------------------

    def hear(self, word: Word) -> None:
        """One message of the bus, in any order."""
        message = word.message
        match message["type"]:
            case "AllocationRequested":
                self._requests[message["name"]] = word.subject.rsplit(".", 1)[1]
            case "Grant" | "Revoke":
                booking = message["booking"]
                self._held[booking["allocation"]] = booking["request"]
            case "Closed":
                self._held.pop(message["allocation"], None)
            case "Bound" if not word.copy:
                self._bound[message["request"]] = (word.at, message["allocation"])

    def bound_at(self, name: str) -> float | None:
        """When a pod was bound last, by the broker's clock; None before."""
        found = self._bound.get(self._requests.get(name, ""))
        return found[0] if found else None

    def all_bound_since(self, begin: float) -> bool:
        """Whether every pod that is there was bound at or after that time."""
        return all((self.bound_at(name) or 0.0) >= begin for name in self.living)

    @property
    def all_bound(self) -> bool:
        return self.all_bound_since(1.0)

    def forget_bookings(self) -> None:
        """The book was lost: bookings that still stand will be entered again."""
        self._held.clear()

    # -- what pods do -------------------------------------------------------------------------------------------------

    async def come_and_go(self) -> None:
        """By themselves, until cancelled."""
        while True:
            await asyncio.sleep(min(3.0, self._dice.expovariate(1 / GAP_MEAN_S)))
            now = time.time()
            for name in [name for name, end in self._ends.items() if end <= now]:
                self.remove(name)
            if len(self.living) + len(self._leaving()) < LIVING_MAX:
                (ask,) = self._dice.choices([ask for ask, _ in ASKS], [weight for _, weight in ASKS])
                name = self.write("pod", ask)
                self._ends[name] = now + self._dice.expovariate(1 / LIFE_MEAN_S)

    def _leaving(self) -> set[str]:
        """Requests of pods that are not there any more, and whose slices are."""
        return set(self._held.values()) - {self._requests.get(name, "") for name in self.living}

    def write(self, prefix: str, ask: dict[str, str], node: str = "") -> str:
        """A new pod, on that node where one is named. Returns its name."""
        self._number += 1
        name = f"{prefix}-{self._number:05}"
        annotations = ", ".join(f'sluice.dev/{key}: "{value}"' for key, value in ask.items())
        where = f"  nodeName: {node}\n" if node else ""
        draft = self._folder / f".{name}"
        draft.write_text(MANIFEST.format(name=name, annotations=annotations, where=where))
        self.living[name] = self._note(name, "since")
        draft.rename(self._folder / f"{name}.yaml")
        return name

    def visit(self, node: str, stay_s: float = VISIT_S) -> str:
        """A small pod on one node, for a while. Returns its name."""
        name = self.write("visit", ASKS[0][0], node)
        self._ends[name] = time.time() + stay_s
        return name

    def remove(self, name: str) -> None:
        self._note(name, "until")
        (self._folder / f"{name}.yaml").unlink()
        self.living.pop(name)
        self._ends.pop(name, None)

    def remove_all(self) -> None:
        for name in list(self.living):
            self.remove(name)

    def _note(self, name: str, what: str) -> float:
        now = time.time()
        with self._truth.open("a", encoding="utf-8") as out:
            out.write(json.dumps({"pod": name, what: now}) + "\n")
        return now
