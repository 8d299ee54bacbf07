"""Running MPS daemons: clients, faults, waiting users, and changed limits."""

import os
import signal

import pytest
from factories.gpus.mps import H1, STRANGER, Place, refusal_of, start_order
from factories.waiting import wait_until

from sluice_node_agent.core.events import MpsSeen
from sluice_node_agent.core.instructions import SetMpsLimits, TerminateMpsClients
from sluice_node_agent.core.journal_records import MpsLimits
from sluice_node_agent.device.mps import control_log
from sluice_node_agent.device.mps.home_directory import MpsError

# -- watching ---------------------------------------------------------------------------------------------------------


def test_clients_are_seen_with_their_pods(place: Place) -> None:
    """Without them the owner of a process on the device is unknown."""
    running = place.daemons.start(start_order())
    assert place.seen(running) == MpsSeen(7, alive=True)
    client = place.client()
    client.hear()
    place.processes.pods[client.pid] = "pod-1"
    seen = wait_until(lambda: place.seen(running).clients, "the client is listed")
    assert [(one.pid, one.owner) for one in seen] == [(client.pid, "pod-1")]
    client.end()
    wait_until(lambda: not place.seen(running).clients, "the client is gone")


def test_a_fault_is_seen_until_its_victims_are_gone(place: Place) -> None:
    """A server in state FAULT admits no client: new pods would fail without a reason."""
    running = place.daemons.start(start_order())
    client = place.client()
    client.hear()
    server = next(process for process in place.left() if process.pid != running[0])
    server.send_signal(signal.SIGUSR1)
    assert client.hear()["error"] == "CUDA_ERROR_MPS_RPC_FAILURE"
    fault = wait_until(lambda: place.seen(running).fault, "the fault is seen")
    assert f"server {server.pid} is in state FAULT" in fault
    assert "fatal exception" in fault
    assert place.client().hear()["error"] == "CUDA_ERROR_MPS_SERVER_NOT_READY"
    client.end()
    wait_until(lambda: not place.seen(running).fault, "the fault is over")
    assert place.client().hear()["served"]


def test_a_user_who_waits_for_his_turn_is_seen(place: Place) -> None:
    """It looks hung: one server serves one user, and the other silently waits until it is idle."""
    running = place.daemons.start(start_order())
    place.client().hear()
    stranger = place.client(uid=STRANGER)
    assert wait_until(lambda: place.seen(running).waiting, "the other user waits") == (STRANGER,)
    stranger.end()
    wait_until(lambda: not place.seen(running).waiting, "no user waits any more")


def test_a_server_that_went_to_another_user_is_a_fault(place: Place) -> None:
    """An idle server makes room for another user's: the device's own tenants are locked out from then on."""
    running = place.daemons.start(start_order())
    assert place.client(uid=STRANGER).hear()["served"]
    assert "is of uid 2000, not of uid 1000" in wait_until(lambda: place.seen(running).fault, "the fault is seen")


def test_a_pid_that_became_another_process_is_not_the_daemon(place: Place) -> None:
    """Pids come round: the start time tells them apart."""
    pid, started_at = place.daemons.start(start_order())
    assert place.seen((pid, started_at)).alive
    assert not place.seen((pid, started_at + 1)).alive
    assert not place.seen((os.getpid(), started_at)).alive
    assert not place.seen((0, 0)).alive


def test_a_daemon_that_does_not_answer_is_refused_and_can_be_started_again(place: Place) -> None:
    """It may only be slow; and if it never answers again, its device must be usable by another one."""
    pid, started_at = place.daemons.start(start_order())
    os.kill(pid, signal.SIGSTOP)
    place.daemons = place.hurried()
    with pytest.raises(MpsError, match="answer"):
        place.seen((pid, started_at))
    assert [home.pid for home in place.daemons.found()] == [pid]
    place.timeout_s = 8.0
    place.reborn()
    again = place.daemons.start(start_order())
    assert again[0] != pid
    assert place.processes.started_at(pid) == 0
    assert place.seen(again).alive


def test_questions_do_not_fill_the_disk(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon logs each command; every few seconds, that fills a disk in some weeks."""
    running = place.daemons.start(start_order())
    log = place.root / H1 / "log" / "control.log"
    monkeypatch.setattr(control_log, "LOG_MAX_BYTES", 2000)
    for _ in range(12):
        assert place.seen(running).alive
    assert log.stat().st_size < 4000
    place.client().hear()
    place.client(uid=STRANGER)
    assert wait_until(lambda: place.seen(running).waiting, "it is read on from where it was cut") == (STRANGER,)


# -- limits and clients -----------------------------------------------------------------------------------------------


def test_new_limits_hold_for_clients_that_come_later(place: Place) -> None:
    """A limit is fixed when a client starts: no client loses memory that it holds."""
    place.daemons.start(start_order())
    old = place.client()
    assert old.hear()["memory_mib"] == 1500
    place.daemons.set_limits(SetMpsLimits(3, H1, MpsLimits(active_thread_percentage=70, memory_mib=300)))
    assert old.allocate(1500) == {"held_mib": 1500}
    new = place.client().hear()
    assert (new["active_thread_percentage"], new["memory_mib"]) == (70.0, 300)


def test_limits_that_were_not_taken_are_refused(place: Place) -> None:
    """The real daemon ignores what it does not like with exit status 0: only reading back shows it."""
    place.switch("limits_not_taken")
    said = refusal_of(lambda: place.daemons.start(start_order()))
    assert said == "home h1: the default active thread percentage was set to 30, reads 100.0"
    place.switch()
    place.daemons.start(start_order())
    place.switch("limits_not_taken")
    wanted = SetMpsLimits(3, H1, MpsLimits(active_thread_percentage=30, memory_mib=9000))
    assert refusal_of(lambda: place.daemons.set_limits(wanted)).endswith("was set to 9000M, reads 1G")


def test_only_clients_that_were_named_are_let_go(place: Place) -> None:
    """A neighbour on the same device does not notice that a pod was ended."""
    running = place.daemons.start(start_order())
    going, staying = place.client(), place.client()
    going.hear(), staying.hear()
    wait_until(lambda: len(place.seen(running).clients) == 2, "both are listed")
    place.daemons.terminate_clients(TerminateMpsClients(4, H1, (going.pid, os.getpid(), 999_999)))
    assert going.hear()["error"] == "CUDA_ERROR_MPS_CLIENT_TERMINATED"
    assert {client.pid for client in place.seen(running).clients} == {going.pid, staying.pid}, "it has its memory still"
    assert staying.allocate(10) == {"held_mib": 10}
    going.end()
    wait_until(lambda: [each.pid for each in place.seen(running).clients] == [staying.pid], "it is gone")


def test_a_client_is_let_go_once_and_its_neighbours_stay_watched(place: Place) -> None:
    """Named a second time, the daemon of 580.159 answers no command until the process has ended."""
    running = place.daemons.start(start_order())
    going, staying = place.client(), place.client()
    going.hear(), staying.hear()
    wait_until(lambda: len(place.seen(running).clients) == 2, "both are listed")
    order = TerminateMpsClients(4, H1, (going.pid,))
    place.daemons.terminate_clients(order)
    place.daemons.terminate_clients(order)
    place.reborn().terminate_clients(order)  # an agent that was restarted in between
    assert place.seen(running).alive
    assert staying.allocate(10) == {"held_mib": 10}


def test_a_stopped_client_is_not_let_go_but_the_others_are_and_its_neighbours_stay_watched(place: Place) -> None:
    """Asked to terminate a client that cannot answer, the daemon of 580.159 answers no command until it has ended."""
    running = place.daemons.start(start_order())
    stopped, going, staying = sorted((place.client(), place.client(), place.client()), key=lambda client: client.pid)
    for client in (stopped, going, staying):
        client.hear()
    wait_until(lambda: len(place.seen(running).clients) == 3, "all are listed")
    stopped.process.send_signal(signal.SIGSTOP)
    wait_until(lambda: place.processes.is_stopped(stopped.pid), "it is stopped")
    order = TerminateMpsClients(4, H1, (stopped.pid, going.pid))
    said = refusal_of(lambda: place.daemons.terminate_clients(order))
    assert said == f"home h1: process {stopped.pid} is stopped; no server can disconnect it: continue or kill it"
    assert going.hear()["error"] == "CUDA_ERROR_MPS_CLIENT_TERMINATED"
    assert place.seen(running).alive
    assert staying.allocate(10) == {"held_mib": 10}
    stopped.process.send_signal(signal.SIGCONT)
    wait_until(lambda: not place.processes.is_stopped(stopped.pid), "it goes on")
    place.daemons.terminate_clients(order)
    assert stopped.hear()["error"] == "CUDA_ERROR_MPS_CLIENT_TERMINATED"


def test_a_process_that_has_the_number_of_one_that_was_let_go_is_let_go_too(place: Place) -> None:
    """It would compute on in a revoked slice."""
    running = place.daemons.start(start_order())
    going = place.client()
    going.hear()
    wait_until(lambda: place.seen(running).clients, "it is listed")
    (place.daemons.root / H1 / "terminated.json").write_text(f'{{"{going.pid}":1}}')
    place.daemons.terminate_clients(TerminateMpsClients(4, H1, (going.pid,)))
    assert going.hear()["error"] == "CUDA_ERROR_MPS_CLIENT_TERMINATED"


def test_clients_of_a_home_that_is_gone_are_gone(place: Place) -> None:
    """A slice must be able to end after its daemon."""
    place.daemons.terminate_clients(TerminateMpsClients(4, H1, (1,)))
