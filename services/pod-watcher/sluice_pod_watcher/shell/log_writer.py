"""Writes what a core tells people into the log: the folder's core and the cluster's speak alike."""

from typing import Any

from sluice.runtime import logs
from sluice.runtime.core_runner import Executor
from sluice_pod_watcher.core.folder.events import WriteLogLine


def log_writer() -> Executor[Any]:
    """How `WriteLogLine` is carried out: line by line, in order."""
    log = logs.get("pods")

    async def tell(wanted: WriteLogLine) -> None:
        line = log.warning if wanted.level == "warning" else log.info
        if wanted.request:
            line(wanted.sentence, request=wanted.request)
        else:
            line(wanted.sentence)

    return Executor(tell, key=lambda _: "log", request=lambda wanted: wanted.request, quiet=True)
