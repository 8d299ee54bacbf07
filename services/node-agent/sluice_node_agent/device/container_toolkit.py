"""
The driver's part of a CDI file, from NVIDIA's container toolkit: `nvidia-ctk cdi generate`.

Only its common edits are used: libraries, programs, hooks and control devices, which are the same for all GPUs of a
driver. So it is asked about one GPU, once per version of the driver.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from sluice.contracts.bus.codec import NOT_READABLE
from sluice.contracts.ids import GpuUuid
from sluice.contracts.reasons import shorten
from sluice_node_agent.device.cdi_edits import CdiError, CommonEdits, RootChange, why_no_edits
from sluice_node_agent.device.subprocess_io import communicate

FLOOR = (1, 19, 0)
"""The first version with `--device-id` and `--no-all-device` (NVIDIA/nvidia-container-toolkit)."""
FLOOR_TEXT = ".".join(map(str, FLOOR))
_GENERATE_S = 30.0
"""It looks for all libraries of the driver: a few seconds on a busy node."""
_ANSWER_S = 5.0
_BYTES_MAX = 4 * 1024 * 1024
"""A generated file has some 30 KiB."""
_WHY_MAX = 300
_VERSION = re.compile(r"\bversion v?(\d+)\.(\d+)\.(\d+)")


class ContainerToolkit:
    """NVIDIA's container toolkit on this node. Calls block and raise CdiError."""

    def __init__(self, program: Path | None, *, root: RootChange, hook: str = "") -> None:
        """
        Use this `nvidia-ctk`; None: there is none. `root` is the driver's, `hook` the path of `nvidia-cdi-hook` on the
        node, empty for what `nvidia-ctk` finds.
        """
        self._program = program
        self._root = root
        self._hook = hook
        self._kept: dict[str, CommonEdits] = {}
        """By the driver's version."""

    def common(self, driver_version: str, any_gpu: Callable[[], GpuUuid | None]) -> CommonEdits:
        """The common edits of this driver, generated for one of its GPUs that answers."""
        kept = self._kept.get(driver_version)
        if kept is None:
            self.check()
            gpu = any_gpu()
            if gpu is None:
                raise CdiError("no GPU of this node answers, so the driver cannot be described")
            kept = self._generate(gpu)
            self._kept = {driver_version: kept}
        return kept

    def check(self) -> None:
        """Raise CdiError when the toolkit is missing or too old."""
        if self._program is None:
            raise CdiError(
                f"nvidia-ctk is not found; install the NVIDIA container toolkit, {FLOOR_TEXT} or later, or set "
                "SLUICE_NODE_AGENT_NVIDIA_CTK to its path"
            )
        said = self._run("--version", timeout_s=_ANSWER_S)
        found = _VERSION.search(said)
        if found is None:
            raise CdiError(f"{self._program} --version does not say its version, but {shorten(said, _WHY_MAX)!r}")
        if tuple(map(int, found.groups())) < FLOOR:
            raise CdiError(
                f"NVIDIA container toolkit {'.'.join(found.groups())} cannot describe single devices; install "
                f"{FLOOR_TEXT} or later"
            )

    def _generate(self, gpu: GpuUuid) -> CommonEdits:
        words = [
            *("cdi", "generate", "--format", "json", "--mode", "nvml"),
            *("--device-id", gpu, "--no-all-device", "--device-name-strategy", "uuid"),
        ]
        if self._root.seen != PurePosixPath("/"):
            words += ["--driver-root", str(self._root.seen)]
        if self._hook:
            words += ["--nvidia-cdi-hook-path", self._hook]
        said = self._run(*words, timeout_s=_GENERATE_S)
        try:
            spec: Any = msgspec.json.decode(said[said.find("{") : said.rfind("}") + 1])  # beside its log
        except NOT_READABLE as error:
            raise CdiError(f"nvidia-ctk cdi generate wrote no JSON: {shorten(said, _WHY_MAX)!r}") from error
        edits: Any = spec.get("containerEdits") if isinstance(spec, dict) else None
        if why := why_no_edits(edits):
            raise CdiError(f"nvidia-ctk cdi generate wrote something else than a CDI file: {why}")
        return CommonEdits(self._root.edits(edits), str(spec.get("cdiVersion", "")))

    def _run(self, *words: str, timeout_s: float) -> str:
        assert self._program is not None
        try:
            code, said = communicate((self._program, *words), b"", dict(os.environ), timeout_s, bytes_max=_BYTES_MAX)
        except TimeoutError:
            raise CdiError(f"{self._program} {words[0]} does not end within {timeout_s:g} s") from None
        except OSError as error:
            raise CdiError(f"{self._program} cannot be run: {error.strerror}") from error
        text = said.decode("utf-8", "replace")
        if code != 0:
            why = shorten(text.strip().rpartition("\n")[2], _WHY_MAX)
            raise CdiError(f"{self._program} {' '.join(words[:2])} failed ({code}): {why}")
        return text
