"""Schedulers that die, hang or talk nonsense, and tenants that die or lie: only who fails is hurt."""

import contextlib
import signal
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest
from factories.waiting import wait_until
from quota.rig import Rig
from quota.round_trips import ASK, GIVE_BACK, GRANT, HELLO, packet

WELCOME, STOP = 17, 20
WELCOMED = struct.pack("<QQIIQQ", 100_000, 10_000, 500_000, 1_000_000, 0, 1)
SOON = {"SLUICE_QUOTA_PATIENCE_MS": "500"}


@contextlib.contextmanager
def scripted(rig: Rig, answer: Callable[[int, int, bytes], list[bytes]]) -> Iterator[None]:
    """A scheduler that answers each (kind, sequence, body) with what `answer` says, one connection after another."""
    path = rig.socket("a")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
        door.bind(str(path))
        door.listen()

        def serve() -> None:
            while True:
                try:
                    peer, _ = door.accept()
                except OSError:
                    return
                with peer, contextlib.suppress(ConnectionError):  # the program has ended
                    while found := peer.recv(64):
                        kind, sequence = struct.unpack_from("<6xHQ", found)
                        for said in answer(kind, sequence, found[16:]):
                            peer.send(said)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield
        finally:
            door.shutdown(socket.SHUT_RDWR)
    thread.join(10)
    assert not thread.is_alive()


def test_a_program_goes_on_without_an_answer(rig: Rig) -> None:
    """An agent that is not there would stop every training on its node."""
    rig.add("a", request=0.5)
    process = rig.start("a", "behaviours", "keeps-errno", **SOON)
    assert process.hear() == "ok"
    assert "launches go on without quota" in process.errors()


def test_a_program_goes_on_when_the_scheduler_is_silent(rig: Rig) -> None:
    """An agent that hangs would stop every training on its node."""
    rig.add("a", request=0.5)
    with scripted(rig, lambda kind, sequence, body: [packet(WELCOME, 1, WELCOMED)] if sequence == 1 else []):
        process = rig.start("a", "behaviours", "keeps-errno", **SOON)
        assert process.hear() == "ok"
        assert "the scheduler does not answer" in process.errors()
        process.ended()


def test_who_waits_long_beside_a_living_scheduler_waits_on(rig: Rig) -> None:
    """A tenant in debt would fail open, and never pay."""
    rig.add("a", request=0.5)
    greetings: list[int] = []

    def answer(kind: int, sequence: int, body: bytes) -> list[bytes]:
        if kind == HELLO:
            greetings.append(sequence)
            return [packet(WELCOME, sequence, WELCOMED)]
        return []

    with scripted(rig, answer):
        process = rig.start("a", "behaviours", "keeps-errno", **SOON)
        wait_until(lambda: len(greetings) > 12, "it has tried ten times to connect")  # ten patiences' worth
        assert rig.judge.look().kernels.get("a", 0) + rig.judge.look().pending.get("a", 0) == 0
        assert process.errors() == ""
        process.close()


def test_a_program_that_fails_closed_waits_for_an_answer(rig: Rig) -> None:
    """Strict isolation would last only until the first restart of an agent."""
    rig.add("a", request=0.5)
    process = rig.start("a", "behaviours", "keeps-errno", SLUICE_QUOTA_FAIL="closed", SLUICE_QUOTA_LOG="2", **SOON)
    wait_until(lambda: process.errors().count("No such file") >= 2, "it has tried again, after its patience")
    assert rig.judge.look().kernels["a"] + rig.judge.look().pending["a"] == 0
    rig.start_scheduler()
    assert process.hear() == "ok"


@pytest.mark.parametrize("fail", ["open", "closed"])
def test_programs_outlive_a_killed_scheduler_and_come_back_to_its_successor(rig: Rig, fail: str) -> None:
    """Each restart of an agent would end its tenants, or their quotas."""
    rig.add("a", request=0.5)
    rig.start_scheduler()
    process = rig.start("a", "behaviours", "launches-around", SLUICE_QUOTA_FAIL=fail, **SOON)
    assert process.hear() == "launched"
    rig.scheduler.kill()
    rig.socket("a").unlink()
    process.say("")
    if fail == "open":
        assert process.hear() == "ok"
        return
    rig.start_scheduler()
    assert process.hear() == "ok"
    used = rig.scheduler.ask("usage")["a"]
    assert (used["hellos"], used["tokens"] > 0, used["fail_opens"]) == (1, True, 0)


def test_who_went_on_without_a_scheduler_is_counted_by_the_next_one(rig: Rig) -> None:
    """A tenant could have more than its part of the time, and no metric would show it."""
    rig.add("a", request=0.5)
    process = rig.tenant("a", "steady", 500, 3600, SLUICE_QUOTA_PATIENCE_MS="10")
    process.say("")
    wait_until(lambda: rig.judge.look().kernels["a"] > 0, "it goes on without")
    assert "SLUICE_QUOTA_PATIENCE_MS is '10'; it must be a whole number from 500" in process.errors()
    rig.start_scheduler()
    scheduler = rig.scheduler
    wait_until(lambda: scheduler.ask("usage")["a"]["fail_opens"] == 1, "it has told so")
    wait_until(lambda: scheduler.ask("usage")["a"]["tokens"] > 0, "and it is held again")


@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGSTOP])
def test_a_killed_or_stopped_program_does_not_stop_its_neighbour(rig: Rig, by: signal.Signals) -> None:
    """Its neighbours would wait for a process that is dead; one under a debugger would hold the whole device."""
    rig.start_scheduler()
    rig.add("a", request=0.5)
    rig.add("b", request=0.5)
    hog, other = rig.tenant("a", "steady", 500, 3600), rig.tenant("b", "count", 500, 300)
    hog.say("")
    wait_until(lambda: rig.judge.look().kernels["a"] > 20, "the first one runs")
    hog.process.send_signal(by)
    other.say("")
    assert other.hear().startswith("kernels=300 ")
    if by is signal.SIGKILL:
        assert rig.scheduler.ask("usage")["a"]["connections"] == 0


def test_nonsense_from_a_scheduler_is_ignored(rig: Rig) -> None:
    """A newer scheduler, or a broken one, would crash the program."""
    rig.add("a", request=0.5)
    tokens = iter(range(1, 10_000))

    def answer(kind: int, sequence: int, body: bytes) -> list[bytes]:
        nonsense = [
            b"",
            b"x",
            b"\xff" * 64,
            packet(99, 1),
            packet(HELLO, 1),
            packet(STOP, 1, struct.pack("<Q", 12345)),
            packet(GRANT, 1, struct.pack("<QQQ", 0, 10_000, sequence)),
            packet(GRANT, 1, struct.pack("<QQQ", 77, 2**64 - 1, 2**64 - 1)),
        ]
        if kind == HELLO:
            return [*nonsense[1:], packet(WELCOME, 1, struct.pack("<QQIIQQ", 0, 2**64 - 1, 0, 0, 0, 0)),
                    packet(WELCOME, 1, WELCOMED)]  # fmt: skip
        if kind == ASK:
            return [*nonsense[1:], packet(GRANT, 1, struct.pack("<QQQ", next(tokens) + 1000, 3_000, sequence))]
        assert kind == GIVE_BACK
        return [packet(STOP, 1, body[:8])]

    with scripted(rig, answer):
        process = rig.start("a", "behaviours", "keeps-errno")
        assert process.hear() == "ok"
        assert process.ended() == 0


def test_a_flood_hurts_only_the_one_who_sends_it(rig: Rig) -> None:
    """Any process in a pod can write to its socket."""
    rig.start_scheduler()
    rig.add("a", request=0.5)
    rig.add("b", request=0.5)
    over = threading.Event()

    def flood() -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
            peer.connect(str(rig.socket("a")))
            peer.setblocking(False)
            while not over.wait(0.001):
                for number in range(100):
                    try:
                        peer.send(packet(HELLO if number % 2 else ASK, number))
                    except BlockingIOError:
                        break
                    except OSError:
                        return

    thread = threading.Thread(target=flood, daemon=True)
    thread.start()
    try:
        other = rig.tenant("b", "count", 500, 300)
        other.say("")
        assert other.hear().startswith("kernels=300 ")
    finally:
        over.set()
        thread.join(10)
