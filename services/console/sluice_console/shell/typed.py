"""What many commands share: the options that they have in common, and how they end. Knows no command."""

import asyncio
import sys
from collections.abc import Coroutine
from typing import Annotated

from cyclopts import Parameter

from sluice.runtime.bus import BusError
from sluice_console.shell.data_directory import NotStartedError
from sluice_console.shell.demo import DemoFailedError
from sluice_console.shell.live import NotAnsweringError

EXIT_FAILED = 1
EXIT_USAGE = 2

Server = Annotated[
    str | None, Parameter(help="NATS URL; otherwise SLUICE_NATS_URL, otherwise the running `sluice up`.")
]
AsJson = Annotated[bool, Parameter(name="--json", negative="", help="One JSON document (docs/json.md).")]


def run(work: Coroutine[object, object, int]) -> int:
    """Run one command; an expected failure is one sentence and an exit code, never a traceback."""
    try:
        return asyncio.run(work)
    except (BusError, NotAnsweringError, NotStartedError, DemoFailedError) as error:
        sys.stderr.write(f"sluice: {error}\n")
        return EXIT_FAILED
