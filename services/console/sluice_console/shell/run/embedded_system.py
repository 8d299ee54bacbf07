"""
The system that `sluice run` starts if none runs: `python -m sluice_console.shell.run.embedded_system BASE [FLEET]`.

All its files are in the folder BASE. Other commands and other runs find it like any `sluice up`. It ends when no
process locks the file `used` in BASE any more, and then accepts no new users. It has its own process and session, so
that killing a runner does not kill the system: on real GPUs that would leave an instance behind. Without FLEET it
serves this machine's own GPUs, and before it ends it waits until nothing is booked on them. If it cannot start, BASE
stays with a log for the runner.
"""

import asyncio
import fcntl
import os
import shutil
import signal
import sys
from pathlib import Path

from sluice.runtime import logs
from sluice.runtime.bus import BusError
from sluice_console.shell.errors import CommandError
from sluice_console.shell.live.live_fleet import NotAnsweringError
from sluice_console.shell.process.system import System, SystemOptions

USED, PODS, DATA, LOG = "used", "pods", "data", "system.log"
"""File names in BASE."""
READY_WITHIN_S = 60.0
LOOK_EVERY_S = 0.2
"""How often it checks for users: delays the end of a run."""
GIVEN_BACK_WITHIN_S = 30.0
"""Real GPUs: maximum wait for slices to be gone after the last user. The next start finds what is left."""


async def serve(base: Path, fleet: Path | None) -> int:
    """Run until there is no user, or a signal. Raises what starting a system raises."""
    options = SystemOptions(fleet, base / PODS, base / DATA, used_by=base / USED)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, ended.set)
    used = os.open(base / USED, os.O_RDWR | os.O_CLOEXEC)
    try:
        async with System(options, _say) as system:
            until = asyncio.ensure_future(_unused(used, ended))
            ready = asyncio.ensure_future(system.ready(within_s=READY_WITHIN_S))
            try:
                await asyncio.wait((until, ready), return_when=asyncio.FIRST_COMPLETED)
                if ready.done():
                    await ready
                    await until
            finally:
                until.cancel()
                ready.cancel()
                await asyncio.gather(until, ready, return_exceptions=True)
            if fleet is None:
                await _given_back(system)
    finally:
        os.close(used)
    if fleet is not None:
        shutil.rmtree(base, ignore_errors=True)
    return 0


async def _unused(used: int, ended: asyncio.Event) -> None:
    """Return when no process holds the file: it is ours from then on, and a later run starts another system."""
    while not ended.is_set():
        try:
            fcntl.flock(used, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            await asyncio.sleep(LOOK_EVERY_S)
        else:
            return


async def _given_back(system: System) -> None:
    try:
        await system.live.until(
            lambda fleet_state: not fleet_state.bookings(),
            within_s=GIVEN_BACK_WITHIN_S,
            what="every slice to be given back",
        )
    except NotAnsweringError as error:
        _say(str(error))


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def main() -> int:
    """Serve one machine. The last line of output says why it could not."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the parent had blocked them
    logs.configure(service="console", run="", level="error", form="text")
    base = Path(sys.argv[1])
    try:
        return asyncio.run(serve(base, Path(sys.argv[2]) if len(sys.argv) > 2 else None))
    except (BusError, CommandError) as error:
        _say(str(error))
        return 1


if __name__ == "__main__":
    sys.exit(main())
