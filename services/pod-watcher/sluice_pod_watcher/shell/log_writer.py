"""Write the log lines of a core, folder or cluster."""

from typing import Any

from sluice.runtime import core_runner, logs
from sluice_pod_watcher.core.folder.events import WriteLogLine


def log_writer() -> core_runner.Executor[Any]:
    log = logs.get("pods")

    async def tell(wanted: WriteLogLine) -> None:
        line = log.warning if wanted.level == "warning" else log.info
        if wanted.request:
            line(wanted.sentence, request=wanted.request)
        else:
            line(wanted.sentence)

    return core_runner.Executor(tell, key=lambda _: "log", request=lambda wanted: wanted.request, quiet=True)
