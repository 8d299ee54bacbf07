"""The life of one service process: logging, traces, signals, an orderly end within a bounded time, an exit code.

Each service is assembled in its `__main__`: `run(main, lambda: load(AllocatorSettings, service="allocator"),
"allocator")`."""

import asyncio
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from sluice.contracts.ids import RunId
from sluice.runtime import logs
from sluice.runtime.bus import BusError, DeniedError
from sluice.runtime.clock import Clock, SystemClock
from sluice.runtime.errors import NewContainerError, ServiceError
from sluice.runtime.prometheus import metrics
from sluice.runtime.prometheus.http_page import serving_metrics
from sluice.runtime.prometheus.metrics import Sample
from sluice.runtime.prometheus.runtime_metrics import STARTED
from sluice.runtime.settings import CommonSettings, SettingsError
from sluice.runtime.tracing import request_traces
from sluice.runtime.tracing.request_traces import RequestTraces
from sluice.runtime.version import sluice_version

DRAIN_S = 5.0
"""How long a service may take to end after the first signal."""

EXIT_FAILED = 1
EXIT_CONFIG = 78
"""A person must fix something first (EX_CONFIG of sysexits.h): a restart does not heal it."""
EXIT_DENIED = 77
"""The broker denied a subject (EX_NOPERM of sysexits.h); counted from a kubelet's last state, for instance."""

EXIT_NEW_CONTAINER = 75
"""Only a new container helps (EX_TEMPFAIL of sysexits.h): deploy/docker/keep-running ends with it."""

S = TypeVar("S", bound=CommonSettings)
KNOWN = (BusError, ServiceError)


@dataclass(frozen=True, slots=True)
class Service(Generic[S]):
    """The context of a service's main function."""

    name: str
    run: RunId
    settings: S
    clock: Clock
    traces: RequestTraces


def run(
    main: Callable[[Service[S]], Awaitable[None]],
    settings: S | Callable[[], S],
    name: str,
    *,
    words: Sequence[str] = (),
    drain_s: float = DRAIN_S,
) -> int:
    """Run `main` until it returns, fails, or SIGTERM or SIGINT comes. Returns the exit code: 0 or one of EXIT_*.

    `words` is the command line: `--version` alone is answered, anything else is refused (code 2). `settings` may be a
    function that loads them. After a signal `main` is cancelled and has `drain_s` to end, and its tasks and threads as
    long again; then, or at a second signal, the process ends at once (code 1)."""
    if words:
        return _answer(words, name)
    try:
        loaded = settings() if callable(settings) else settings
    except SettingsError as error:
        sys.stderr.write(f"sluice-{name}: {error}\n")
        return EXIT_CONFIG
    own_run = RunId(secrets.token_hex(5))
    logs.configure(service=name, run=own_run, level=loaded.log_level, form=loaded.log_format)
    traces = request_traces.connect(loaded.otlp_endpoint, service=name, run=own_run)
    service = Service(name, own_run, loaded, SystemClock(), traces)
    log = logs.get("service")
    log.info("starting", pid=os.getpid())
    watchdog = threading.Timer(drain_s, _end_now, (f"it did not stop within {drain_s:g} s",))
    watchdog.daemon = True
    try:
        code = asyncio.run(_until_signal(main, service, watchdog))
    finally:
        traces.close()
        others = (thread for thread in threading.enumerate() if thread is not threading.main_thread())
        if all(thread.daemon for thread in others):  # else the interpreter waits for one, perhaps without end
            watchdog.cancel()
    if code == 0:
        log.info("stopped")
    return code


def _answer(words: Sequence[str], name: str) -> int:
    if list(words) == ["--version"]:
        sys.stdout.write(f"sluice-{name} {sluice_version()}\n")
        return 0
    sys.stderr.write(
        f"sluice-{name}: there is no argument {' '.join(words)!r}, only --version; settings are in the environment, "
        "or in the file that SLUICE_CONFIG names\n"
    )
    return 2


async def _until_signal(
    main: Callable[[Service[S]], Awaitable[None]], service: Service[S], watchdog: threading.Timer
) -> int:
    loop = asyncio.get_running_loop()
    log = logs.get("service")
    stopping: asyncio.Future[None] = loop.create_future()

    def stop(number: signal.Signals) -> None:
        if stopping.done():
            _end_now(f"{number.name} came again")
        log.info("stopping", signal=number.name)
        stopping.set_result(None)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    task = asyncio.ensure_future(_shown(main, service))
    await asyncio.wait((task, stopping), return_when=asyncio.FIRST_COMPLETED)
    watchdog.start()  # also of a failed one: the loop waits for its threads and tasks, perhaps without end
    if not task.done():
        task.cancel()
        await asyncio.wait((task,))
    if task.cancelled():
        return 0
    try:
        task.result()
    except Exception as error:  # noqa: BLE001 - the last place that can say why a process ends
        _tell(error)
        return _code_after(list(_leaves(error)))
    return 0


def _code_after(leaves: Sequence[BaseException]) -> int:
    if any(isinstance(leaf, DeniedError) for leaf in leaves):
        return EXIT_DENIED
    if any(isinstance(leaf, NewContainerError) for leaf in leaves):
        return EXIT_NEW_CONTAINER
    return EXIT_CONFIG if all(isinstance(leaf, ServiceError) for leaf in leaves) else EXIT_FAILED


async def _shown(main: Callable[[Service[S]], Awaitable[None]], service: Service[S]) -> None:
    started = time.time()

    def own() -> Iterator[Sample]:
        yield Sample(STARTED, started, (service.name, sluice_version()))

    async with serving_metrics(service.settings.metrics_address):  # also while the broker is awaited
        with metrics.collecting_from(own):
            await main(service)


def _end_now(why: str) -> None:
    logs.get("service").error("ended without finishing", why=why)
    sys.stderr.flush()
    os._exit(1)


def _tell(error: Exception) -> None:
    log = logs.get("service")
    leaves = list(_leaves(error))
    known = [leaf for leaf in leaves if isinstance(leaf, KNOWN)]
    if known and len(known) == len(leaves):
        for sentence in dict.fromkeys(str(leaf) for leaf in known):
            log.error(sentence)
        log.debug("where it came from", exc_info=error)
        return
    log.error("failed", error=repr(leaves[0]), exc_info=error)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
