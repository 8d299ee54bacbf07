"""A service process: explains why it cannot start, stops in order, never hangs."""

import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from sluice.runtime.service import EXIT_CONFIG, EXIT_FAILED, EXIT_NEW_CONTAINER

PRELUDE = """
import asyncio, sys, threading, time
from sluice.runtime.bus import BusError
from sluice.runtime.errors import NewContainerError, ServiceError
from sluice.runtime.service import Service, run
from sluice.runtime.settings import CommonSettings, load

def say(text):
    print(text, flush=True)

def settings():
    return load(CommonSettings, service="allocator")

async def never_ending():
    say("ready")
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass
"""


@pytest.fixture
def start():
    """Starts a service whose main function is given; everything started is ended."""
    processes = []

    def begin(body: str, *words: str, drain_s: float = 5.0, **environ: str) -> subprocess.Popen[str]:
        given = f"settings, 'allocator', drain_s={drain_s}, words=sys.argv[1:]"
        program = f"{PRELUDE}\n{textwrap.dedent(body)}\nsys.exit(run(main, {given}))\n"
        env = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")} | environ
        command = [sys.executable, "-c", program, *words]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
        processes.append(process)
        return process

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


def finish(process: subprocess.Popen[str]) -> tuple[int, str, list[dict]]:
    out, err = process.communicate(timeout=20)
    return process.returncode, out, [json.loads(line) for line in err.splitlines()]


def told_to_end(process: subprocess.Popen[str], number: int = signal.SIGTERM) -> tuple[int, str, list[dict]]:
    """How it ends when it gets a signal once it is ready."""
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    return finish(process)


def test_a_service_that_is_done_ends_well(start):
    """A service that ends by itself has not failed; each run has a name."""
    code, out, log = finish(start("async def main(service): say(service.name)"))
    assert (code, out) == (0, "allocator\n")
    assert [line["event"] for line in log] == ["starting", "stopped"]
    assert len({line["run"] for line in log}) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_a_service_in_order(start, number):
    """Started work is finished before the process ends, and that is success."""
    process = start("""
        async def main(service):
            try:
                say("ready")
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0.05)
                say("put away")
    """)
    code, out, log = told_to_end(process, number)
    assert (code, out) == (0, "put away\n")
    assert [line["event"] for line in log] == ["starting", "stopping", "stopped"]


def test_a_service_that_cannot_stop_is_ended(start):
    """A main function that ignores its cancellation does not hold up a node's shutdown."""
    process = start("async def main(service): await never_ending()", drain_s=0.3)
    assert process.stdout.readline() == "ready\n"
    began = time.monotonic()
    process.terminate()
    code, _, log = finish(process)
    assert code == 1
    assert time.monotonic() - began > 0.25
    assert (log[-1]["event"], log[-1]["why"]) == ("ended without finishing", "it did not stop within 0.3 s")


def test_a_thread_that_never_ends_does_not_keep_a_service_alive(start):
    """A device call that hangs in a thread cannot be cancelled; the process ends nevertheless."""
    body = """
        async def main(service):
            threading.Thread(target=threading.Event().wait).start()
            say("ready")
            await asyncio.Event().wait()
    """
    code, _, log = told_to_end(start(body, drain_s=0.3))
    assert (code, log[-1]["event"]) == (1, "ended without finishing")


@pytest.mark.parametrize("error", ["BusError", "ServiceError"])
@pytest.mark.parametrize(
    "left",
    [
        pytest.param("threading.Thread(target=threading.Event().wait).start()", id="a thread of its own"),
        pytest.param("asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)", id="a thread"),
        pytest.param("asyncio.ensure_future(never_ending())", id="a task"),
    ],
)
def test_what_a_failed_service_has_left_behind_does_not_keep_it_alive(start, left, error):
    """Beside a hanging device call or folder (NFS) it ends, so that its supervisor can restart it."""
    body = f"""
        async def main(service):
            left = {left}
            await asyncio.sleep(0.05)
            raise {error}("the broker denies it")
    """
    code, _, log = finish(start(body, drain_s=0.3))
    assert code == 1
    assert [line["event"] for line in log[-2:]] == ["the broker denies it", "ended without finishing"]


def test_a_second_signal_ends_at_once(start):
    body = """
        async def main(service):
            say("ready")
            try:
                await asyncio.sleep(60)
            finally:
                say("stopping")
                await asyncio.sleep(60)
    """
    process = start(body, drain_s=300.0)
    for said in ("ready\n", "stopping\n"):
        assert process.stdout.readline() == said
        process.send_signal(signal.SIGINT)
    code, _, log = finish(process)
    assert code == 1
    assert log[-1]["why"] == "SIGINT came again"


IN_GROUPS = "ExceptionGroup('', [ExceptionGroup('', [BusError('server too old')])])"
REMOVED = "ExceptionGroup('', [NewContainerError('the folder was removed')])"


@pytest.mark.parametrize(
    ("error", "sentence", "expected"),
    [
        ("BusError('no permission to write sluice.node.a')", "no permission to write sluice.node.a", EXIT_FAILED),
        ("ServiceError('another agent of a holds the lock')", "another agent of a holds the lock", EXIT_CONFIG),
        (REMOVED, "the folder was removed", EXIT_NEW_CONTAINER),
        (IN_GROUPS, "server too old", EXIT_FAILED),
    ],
)
def test_a_known_error_is_one_sentence(start, error, sentence, expected):
    """The operator reads what to fix, not a traceback; and the supervisor learns whether a restart may help."""
    code, _, log = finish(start(f"async def main(service): raise {error}"))
    assert code == expected
    assert [(line["level"], line["event"]) for line in log[1:]] == [("error", sentence)]
    assert "exception" not in log[-1]


def test_where_a_known_error_came_from_can_be_seen(start):
    code, _, log = finish(start("async def main(service): raise BusError('no')", SLUICE_LOG_LEVEL="debug"))
    assert code == 1
    assert "BusError: no" in log[-1]["exception"]


def test_an_unknown_error_is_told_with_its_traceback(start):
    code, _, log = finish(start("async def main(service): raise KeyError('oops')"))
    assert code == 1
    assert (log[-1]["event"], log[-1]["error"]) == ("failed", "KeyError('oops')")
    assert "in main" in log[-1]["exception"]


def test_an_error_while_stopping_is_a_failure(start):
    """A stop that loses something does not look like success."""
    process = start("""
        async def main(service):
            try:
                say("ready")
                await asyncio.Event().wait()
            finally:
                raise ServiceError("the journal could not be closed")
    """)
    code, _, log = told_to_end(process)
    assert (code, log[-1]["event"]) == (EXIT_CONFIG, "the journal could not be closed")


def refused(process: subprocess.Popen[str]) -> tuple[int, str]:
    """How it ends and what it says, having started nothing."""
    out, err = process.communicate(timeout=20)
    assert out == ""
    return process.returncode, err


def test_wrong_settings_are_told_before_anything_starts(start):
    """One line on stderr, and the exit code for a configuration error."""
    told = "SLUICE_LOG_LEVL is set, but there is no such setting (did you mean SLUICE_LOG_LEVEL?)"
    process = start("async def main(service): say('started')", SLUICE_LOG_LEVL="debug")
    assert refused(process) == (EXIT_CONFIG, f"sluice-allocator: {told}\n")


def test_a_service_says_which_version_it_is(start):
    """Without settings and without starting: it matters most for an image that does not start."""
    process = start("async def main(service): say('started')", "--version", SLUICE_LOG_LEVEL="wrong")
    version = f"sluice-allocator {importlib.metadata.version('sluice-gpu')}\n"
    assert process.communicate(timeout=20) == (version, "")


def test_a_service_does_not_start_on_words_that_it_does_not_know(start):
    code, said = refused(start("async def main(service): say('started')", "--nats-url", "nats://elsewhere:4222"))
    assert code == 2
    assert said == (
        "sluice-allocator: there is no argument '--nats-url nats://elsewhere:4222', only --version; settings are in "
        "the environment, or in the file that SLUICE_CONFIG names\n"
    )
