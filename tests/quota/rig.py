"""One simulated device, its scheduler and tenants, each a process, all gone at the end; every wait has a bound."""

import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from quota.compiled import ROOT, Built
from quota.judge import Judge

ANSWER_WITHIN_S = 30.0
"""A new Python process on a busy machine needs seconds."""
_SOURCES = ("libs", "services/node-agent")


class Lines:
    """A process that exchanges lines."""

    def __init__(self, command: list[str], env: Mapping[str, str]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - `close` does; a file is never full, as a pipe is
        self.process = subprocess.Popen(
            command,
            env=dict(env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            process_group=0,  # it may be stopped: see tests/factories/processes.py
        )
        assert self.process.stdout is not None
        self._rest = b""
        self._selector = selectors.DefaultSelector()
        self._selector.register(self.process.stdout, selectors.EVENT_READ)

    def say(self, line: str) -> None:
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def hear(self, within_s: float = ANSWER_WITHIN_S) -> str:
        """The next line from it. Raises AssertionError when none comes in time, or it ends."""
        deadline = time.monotonic() + within_s
        while b"\n" not in self._rest:
            left = deadline - time.monotonic()
            assert left > 0, f"{self.process.args} said nothing within {within_s:g} s"
            if self._selector.select(left):
                more = os.read(self.process.stdout.fileno(), 65536)
                assert more, f"{self.process.args} ended with {self.process.wait(10)}: {self.errors()}"
                self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode()

    def errors(self) -> str:
        """What it has written to stderr, the end of it."""
        size = os.fstat(self._errors.fileno()).st_size
        return os.pread(self._errors.fileno(), 4000, max(0, size - 4000)).decode(errors="replace").strip()

    def ended(self, within_s: float = ANSWER_WITHIN_S) -> int:
        """Its exit code. Raises TimeoutExpired."""
        return self.process.wait(within_s)

    def kill(self) -> None:
        """End it as `kill -9` does."""
        self.process.kill()
        self.process.wait(10)

    def close(self) -> None:
        """It and its pipes are gone afterwards."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.kill()
        self._selector.close()
        self._errors.close()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(BrokenPipeError):  # it has ended already
                pipe.close()


class Scheduler(Lines):
    """The process of `scheduler_process.py`."""

    def __init__(self) -> None:
        paths = os.pathsep.join(str(ROOT / source) for source in _SOURCES)
        env = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
        super().__init__([sys.executable, str(Path(__file__).with_name("scheduler_process.py"))],
                         env | {"PYTHONPATH": paths})  # fmt: skip

    def ask(self, do: str, **values: object) -> dict:
        self.say(json.dumps({"do": do} | values))
        return json.loads(self.hear())


class Rig:
    """A device and its processes. A context: everything that was started is stopped, every file removed."""

    def __init__(self, built: Built) -> None:
        self.built = built
        self.folder = Path(tempfile.mkdtemp(prefix="sl-q"))
        self.device = self.folder / "device"
        self.judge = Judge(built.judge, self.device)
        self.scheduler: Scheduler | None = None
        self._sizes: dict[str, dict[str, object]] = {}
        self._running: list[Lines] = []

    def start_scheduler(self) -> None:
        """Start it, with the tenants that were added; also after it was killed."""
        self.scheduler = Scheduler()
        self._running.append(self.scheduler)
        for name, size in self._sizes.items():
            self.scheduler.ask("add", name=name, **size)

    def add(self, name: str, *, request: float, limit: float = 1.0, width: int = 100, memory: int = 0) -> None:
        """A tenant; its socket is there afterwards when a scheduler runs."""
        path = self.folder / name / "quota.sock"
        path.parent.mkdir()
        self._sizes[name] = {
            "socket": str(path), "request": request, "limit": limit, "width": width, "memory": memory
        }  # fmt: skip
        if self.scheduler is not None:
            self.scheduler.ask("add", name=name, **self._sizes[name])

    def socket(self, name: str) -> Path:
        return self.folder / name / "quota.sock"

    def environment(self, name: str, *, quota: bool = True, **more: str) -> dict[str, str]:
        """What a tenant's processes have in their environment."""
        width = str(self._sizes[name]["width"]) if name in self._sizes else "100"
        plain = {key: value for key, value in os.environ.items() if not key.startswith(("SLUICE_", "CUDA_", "LD_"))}
        found = plain | {
            "LD_LIBRARY_PATH": str(self.built.cuda.parent),
            "STAND_IN_DEVICE": str(self.device),
            "STAND_IN_NAME": name,
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": width,
        }
        if quota:
            found |= {"LD_PRELOAD": str(self.built.library), "SLUICE_QUOTA_SOCKET": str(self.socket(name))}
        return found | more

    def start(self, name: str, program: str, *arguments: object, quota: bool = True, **more: str) -> Lines:
        """A process of a tenant, which has said that it is ready."""
        command = [self.built.program(program), *map(str, arguments)]
        process = Lines(command, self.environment(name, quota=quota, **more))
        self._running.append(process)
        return process

    def tenant(
        self, name: str, kind: str, kernel_us: float, amount: float, *, quota: bool = True, **more: str
    ) -> Lines:
        """The program `tenant`, ready to begin with the next line."""
        width = self._sizes[name]["width"] if name in self._sizes else 100
        process = self.start(name, "tenant", kind, int(kernel_us * 1000), amount, width, quota=quota, **more)
        assert process.hear() == "ready"
        return process

    def complaints(self) -> list[str]:
        """What any process has written to stderr, each line once."""
        return sorted({line for process in self._running for line in process.errors().splitlines()})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in reversed(self._running):
            process.close()
        shutil.rmtree(self.folder)
