"""`sluice up`: runs a whole system until Ctrl-C."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import Iterator

from sluice_console.shell.live.local_user import FILE, USER
from sluice_console.shell.output.printer import say
from sluice_console.shell.process.system import System, SystemOptions
from sluice_console.shell.web import sidecar

READY_WITHIN_S = 60.0


async def up(options: SystemOptions, *, page: str = sidecar.OFF, ready_within_s: float = READY_WITHIN_S) -> int:
    """Start everything, print the addresses, run until SIGINT or SIGTERM, stop everything.

    `page` is the web page's address (HOST:PORT), empty for the usual one, `off` for none. Raises NotStartedError,
    NotServedError, NotAnsweringError, BusError; none leaves anything running."""
    taken = sidecar.take(page)
    try:
        system = System(options, lambda line: say([line]))
        stop = asyncio.Event()
        with _on_signal(stop, system):
            say([_what_starts(system, options)])
            async with system:
                if await _ready_or_stopped(system, stop, ready_within_s):
                    taken.release()
                    if taken.address:
                        await system.also(sidecar.child(system.nats_url, taken.address, system.data_dir))
                    _print_reach(system, sidecar.page_at(taken.address) if taken.address else "")
                    await stop.wait()
                say(["stopping ..."])
    finally:
        taken.release()
    say(["stopped; nothing is left running"])
    return 0


def _what_starts(system: System, options: SystemOptions) -> str:
    if options.fleet_file is None:
        return f"starting one node, {system.nodes[0]}, with the GPUs of this machine ..."
    return f"starting {len(system.nodes)} simulated nodes from {options.fleet_file} ..."


async def _ready_or_stopped(system: System, stop: asyncio.Event, within_s: float) -> bool:
    ready = asyncio.ensure_future(system.ready(within_s=within_s))
    stopped = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((ready, stopped), return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            await ready
            return True
        return False
    finally:
        for task in (ready, stopped):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


@contextlib.contextmanager
def _on_signal(stop: asyncio.Event, system: System) -> Iterator[None]:
    """The first signal stops in order; the second one kills."""

    def heard() -> None:
        if stop.is_set():
            system.kill_now()
        stop.set()

    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, heard)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def _print_reach(system: System, page: str) -> None:
    running = system.running()
    lines = (
        f"ready: {len(running.nodes)} nodes are open",
        *([f"  page        {page} (the live map, in a browser)"] if page else []),
        f"  NATS        {running.nats_url}",
        f"  inventory   {running.inventory_grpc} (gRPC, sluice.v1.InventoryService)",
        f"  pods        {running.pods_dir} (write Pod manifests here; remove a file to end its pods)",
        f"  data, logs  {running.data_dir}",
        "try in another terminal:",
        "  sluice top",
        "  sluice pods",
        "  sluice events -f",
        f"  nats --server {running.nats_url} --user {USER} --password $(cat {running.data_dir}/{FILE}) sub 'sluice.>'",
        "Ctrl-C stops everything.",
    )
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()
