"""
The scene of the demo: a running system, its folder of pods, and its output.

Waits for conditions with a time limit, never for time to pass.
"""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from sluice_console.core.documents import GpuDocument, GpusDocument, InstanceDocument, PodDocument
from sluice_console.core.fleet.fleet_state import FleetState
from sluice_console.core.fleet.gpus import gpus_document
from sluice_console.core.fleet.pods import pods_document
from sluice_console.shell.errors import CommandError
from sluice_console.shell.live.live_fleet import LiveFleet, NotAnsweringError
from sluice_console.shell.output.printer import show_gpus

ACT_WITHIN_S = 15.0


class DemoFailedError(CommandError):
    """An act of the demo failed. One sentence."""


@dataclass(frozen=True, slots=True)
class Scene:
    """The fleet and the pods at one moment."""

    gpus: tuple[GpuDocument, ...]
    pods: dict[str, PodDocument]
    """By pod name."""

    @staticmethod
    def of(fleet_state: FleetState) -> "Scene":
        """The fleet and the pods now."""
        pods = {pod.name or pod.origin: pod for pod in pods_document(fleet_state).pods}
        return Scene(gpus_document(fleet_state).gpus, pods)

    def state(self, name: str) -> str:
        """A pod's state; empty if there is no such pod."""
        return self.pods[name].state if name in self.pods else ""

    def holds(self, name: str) -> bool:
        """Whether a pod is bound and the inventory shows its slices as ready."""
        owners = [place for gpu in self.gpus for place in gpu.instances if place.owner.endswith(f"/{name}")]
        return self.state(name) == "bound" and bool(owners) and all(place.state == "ready" for place in owners)

    def home_of(self, name: str) -> InstanceDocument | None:
        """The shared device of a bound pod once its MPS daemon is ready; None before."""
        for gpu in self.gpus:
            for place in gpu.instances:
                mine = [tenant for tenant in place.tenants if tenant.owner.endswith(f"/{name}")]
                if mine and place.daemon is not None and place.daemon.state == "ready":
                    return place if self.state(name) == "bound" and mine[0].state == "ready" else None
        return None

    def gpu_of(self, name: str) -> GpuDocument:
        """The GPU that a pod's first slice is on. Raises DemoFailedError."""
        for gpu in self.gpus:
            if any(place.owner.endswith(f"/{name}") for place in gpu.instances):
                return gpu
        raise DemoFailedError(f"no GPU shows a slice of the pod {name}")


@dataclass(slots=True)
class Stage:
    """Adds and removes pods as files, waits for the result, and prints it on `out`."""

    out: Console
    live: LiveFleet
    pods_dir: Path
    examples: Path
    act: int = 0

    def begin(self, title: str, *sentences: str) -> None:
        """Print the title of the next act."""
        self.act += 1
        self.out.print(f"\n{self.act}. {title}", style="bold")
        for sentence in sentences:
            self.out.print(f"   {sentence}")

    def tell(self, *sentences: str) -> None:
        """Print a result."""
        for sentence in sentences:
            self.out.print(f"   {sentence}")

    def add(self, *files: str) -> None:
        """Put example manifests into the folder, atomically."""
        for file in files:
            hidden = self.pods_dir.parent / f".{file}.tmp"
            shutil.copyfile(self.examples / file, hidden)
            os.replace(hidden, self.pods_dir / file)  # noqa: PTH105 - the atomic form, said as such
        self.out.print(f"   + {' '.join(files)}", style="green")

    def remove(self, *files: str) -> None:
        """Remove manifests, which deletes their pods."""
        for file in files:
            (self.pods_dir / file).unlink()
        self.out.print(f"   - {' '.join(files)}", style="red")

    async def until(self, condition: Callable[[Scene], bool], what: str) -> Scene:
        """The first scene in which `condition` holds. Raises DemoFailedError after ACT_WITHIN_S."""

        def look(fleet_state: FleetState) -> Scene | None:
            scene = Scene.of(fleet_state)
            return scene if condition(scene) else None

        try:
            return await self.live.until(look, within_s=ACT_WITHIN_S, what=what)
        except NotAnsweringError as error:
            scene = Scene.of(self.live.fleet_state)
            pods = "; ".join(f"{name}: {pod.message}" for name, pod in scene.pods.items()) or "no pod is known"
            raise DemoFailedError(f"act {self.act}: {error} ({pods})") from None

    def show(self, scene: Scene) -> None:
        """The picture of the fleet, a line per GPU."""
        show_gpus(self.out, GpusDocument(gpus=scene.gpus), compact=True)
