"""Options that commands share, and how commands end."""

import select
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from sluice_console.core.output.sanitize import sanitize
from sluice_console.shell.errors import CommandError

if TYPE_CHECKING:
    from cyclopts.completion import CompletionContext

    from sluice.runtime.bus import BusError
    from sluice_console.core.fleet.names import Named
    from sluice_console.shell.output.formats import OutputFormat

INTERRUPT_S = 0.2  # the latest that a question notices Ctrl-C
CANCEL_AGAIN_S = 5.0  # how long a command may take for its end before it is cancelled again
EXIT_FAILED = 1
EXIT_USAGE = 2
OPERATORS_ALONE = (
    "the user 'console' only reads, and may not publish {0}: use the user 'operator' for changes "
    "(SLUICE_NATS_USER and its password; in a cluster a token of sluice-operator)"
)

Server = Annotated[
    str | None, Parameter(help="NATS URL; otherwise SLUICE_NATS_URL, otherwise the running `sluice up`.")
]
AsJson = Annotated[bool, Parameter(name="--json", negative="", help="One JSON document (docs/json.md).")]


def named(kind: "Named") -> "Callable[[CompletionContext], list[str]]":
    """Completes a name from the running system."""

    def names(context: "CompletionContext") -> list[str]:
        from sluice_console.shell.live.names import live_names

        return live_names(kind, context)

    return names


Documented = Annotated[
    Literal["json", "yaml"] | None,
    Parameter(name=["--output", "-o"], help="The same document, as JSON or YAML (docs/json.md)."),
]


def form_of(output: "Literal['wide', 'json', 'yaml'] | None", *, json: bool) -> "OutputFormat":
    """The output form. Raises UsageError if two are given."""
    if json and output not in {None, "json"}:
        raise UsageError(f"--json contradicts -o {output}: name one of them")
    return "json" if json else output or "text"


class UsageError(CommandError):
    """Contradicting options, or a confirmation is needed and there is no terminal."""

    exit_code = EXIT_USAGE


def ask(question: str) -> bool:
    """Ask the user for confirmation; anything but y and yes is no."""
    return answered(f"{question} [y/N] ").lower() in {"y", "yes"}


def answered(question: str) -> str:
    """The user's answer from the terminal. Raises KeyboardInterrupt for Ctrl-C."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        # In a task the first Ctrl-C only marks it as cancelled, and a wait for a line goes on.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        sys.stderr.write(question)
        sys.stderr.flush()
        # A signal that comes just before a system call does not end it: no call here is without an end.
        while not select.select([sys.stdin], [], [], INTERRUPT_S)[0]:
            pass
        return sys.stdin.readline().strip()
    finally:
        signal.signal(signal.SIGINT, before)


def agreed(question: str, *, yes: bool) -> bool:
    """Whether the user confirms. Raises UsageError without a terminal."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise UsageError("no terminal to confirm on; use --yes")
    if ask(question):
        return True
    sys.stderr.write("nothing was done\n")
    return False


def run(work: Coroutine[object, object, int]) -> int:
    """Run one command; an expected failure is one sentence and an exit code, never a traceback."""
    import asyncio

    from sluice.runtime import logs
    from sluice.runtime.bus import BusError

    logs.configure(service="console", run="", level="error", form="text")  # commands print, not log
    try:
        return asyncio.run(_ending(work))
    except BusError as error:
        sys.stderr.write(f"sluice: {sanitize(_in_words(error))}\n")
        return EXIT_FAILED
    except CommandError as error:
        sys.stderr.write(f"sluice: {sanitize(str(error))}\n")
        return error.exit_code


async def _ending(work: Coroutine[object, object, int]) -> int:
    """A command that ends after Ctrl-C, however often a cancellation is lost. The NATS client's `asyncio.wait_for` of
    Python 3.11 loses one that comes together with an answer."""
    import asyncio

    task, on_ctrl_c = asyncio.current_task(), signal.getsignal(signal.SIGINT)
    assert task is not None
    if not callable(on_ctrl_c) or threading.current_thread() is not threading.main_thread():
        return await work
    interrupted = asyncio.Event()

    def interrupt(number: int, frame: FrameType | None) -> None:
        interrupted.set()
        on_ctrl_c(number, frame)  # the runner's: it cancels the task, and wakes the loop

    async def cancel_again() -> None:
        await interrupted.wait()
        while True:
            await asyncio.sleep(CANCEL_AGAIN_S)
            task.cancel()

    signal.signal(signal.SIGINT, interrupt)
    cancelling = asyncio.ensure_future(cancel_again())
    try:
        return await work
    finally:
        cancelling.cancel()
        if signal.getsignal(signal.SIGINT) is interrupt:
            signal.signal(signal.SIGINT, on_ctrl_c)
        while interrupted.is_set() and task.cancelling() > 1:  # as one, which the runner takes for Ctrl-C
            task.uncancel()


def _in_words(error: "BusError") -> str:
    from sluice.contracts.bus.nats_permissions import user_name
    from sluice.contracts.bus.streams import Role
    from sluice.runtime.bus import DeniedError

    if isinstance(error, DeniedError) and error.verb.lower() == "publish" and error.user == user_name(Role.CONSOLE):
        return OPERATORS_ALONE.format(error.subject)
    return str(error)
