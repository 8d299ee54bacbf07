"""The MPS daemons of one node's homes: started with their limits read back, polled, and ended completely. A daemon
outlives its agent, and counts only if it answers on its own pipe directory; files outlive it. Processes that were not
started for the home are never touched. Calls block, each at most `timeout_s`, for different homes in parallel."""

import os
import threading
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from sluice.contracts.ids import HomeId
from sluice.runtime import logs
from sluice_node_agent.core.events import FoundMpsHome, MpsClient, MpsSeen
from sluice_node_agent.core.instructions import SetMpsLimits, StartMps, StopMps, TerminateMpsClients, WatchMps
from sluice_node_agent.device.mps.control import MpsControl, MpsProcess, NoAnswerError, NoDaemonError, candidates
from sluice_node_agent.device.mps.control_log import ControlLog
from sluice_node_agent.device.mps.home_directory import (
    HomeDirectory,
    HomeOwner,
    MpsError,
    TerminatedClients,
    as_mps_error,
)
from sluice_node_agent.device.mps.termination import Deadline, HomeTermination
from sluice_node_agent.device.processes import Processes

_INHERITED = ("PATH", "LD_LIBRARY_PATH")
"""What a daemon inherits of our environment: it finds its server on the first, and the driver on the second."""
_FORKING_S = 0.5
"""How long a starting daemon may be several processes: normally far less."""
_QUIT_S = 1
"""Seconds that `quit -t` gives the servers to end by themselves; their tenants are gone by then."""


class MpsDaemons:
    """The MPS daemons below one root."""

    def __init__(
        self,
        root: Path,
        control: Path,
        processes: Processes,
        *,
        timeout_s: float = 10.0,
        environment: Mapping[str, str] = {},
    ) -> None:
        """Keep homes below `root`, run the binary `control`; `environment` is added to its own. Raises MpsError when
        our own process cannot be read: without its pod the agent recognises none of its daemons."""
        self.root = root.absolute()
        self._control = control
        self._processes = processes
        self._timeout_s = timeout_s
        self._environment = {name: os.environ[name] for name in _INHERITED if name in os.environ} | dict(environment)
        with as_mps_error():
            self._pod = processes.own_pod()
        self._logs: dict[HomeId, ControlLog] = {}
        self._guard = threading.Lock()
        self._ending = HomeTermination(processes)
        self._log = logs.get("mps")

    @as_mps_error()
    def found(self) -> tuple[FoundMpsHome, ...]:
        """All homes with a directory, and the daemons that run. Other directories are left alone and logged."""
        deadline = Deadline(self._timeout_s)
        try:
            names = sorted(path.name for path in self.root.iterdir())
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise MpsError(f"the MPS directory {self.root} cannot be read: {error.strerror}") from error
        pids = candidates(self._processes)
        homes = []
        for name in names:
            try:
                directory = HomeDirectory(self.root, HomeId(name))
                owner = directory.read()
            except MpsError as error:
                self._log.warning("left alone", path=str(self.root / name), why=str(error))
                continue
            if owner is None:
                self._log.warning("left alone", path=str(self.root / name), why="it is no home: it has no home.json")
                continue
            daemon = self._running(directory, owner, deadline, pids)
            pid, started_at = (daemon.pid, daemon.started_at) if daemon is not None else (0, 0)
            whose = (owner.gpu, owner.device, owner.namespace, owner.uid)
            homes.append(FoundMpsHome(directory.home, *whose, pid, started_at))
        return tuple(homes)

    @as_mps_error()
    def start(self, order: StartMps) -> tuple[int, int]:
        """Start the daemon of a home, or find it answering; its pid and start time. Raises MpsError."""
        deadline = Deadline(self._timeout_s)
        directory, control = self._home(order.home)
        directory.check_length()
        owner = directory.read()
        wanted = HomeOwner(
            gpu=order.gpu, device=order.device, namespace=order.namespace, uid=order.uid, agent_pod=self._pod
        )
        if owner is not None and replace(owner, agent_pod=self._pod) != wanted:
            whose = f"{owner.device} for uid {owner.uid} of namespace {owner.namespace}"
            raise MpsError(f"home {order.home} is there already, on {whose}; a home's name is never used twice")
        daemon = self._answering(directory, owner, deadline)
        adopted = daemon is not None
        if daemon is None:
            self._ending.end(order.home, control.processes("", self._pods_of(owner)), deadline)
            directory.prepare(wanted)
            self._forget_log(order.home)
            daemon = self._launch(directory, control, wanted, deadline)
        control.set_defaults(order.limits, deadline.left_s)
        server = self._await_server(directory, control, order.uid, deadline)
        if adopted:
            control.set_limits(server, order.limits, deadline.left_s)
        else:
            control.check_limits(server, order.limits, deadline.left_s)
        return daemon.pid, daemon.started_at

    def set_limits(self, order: SetMpsLimits) -> None:
        """Set the limits of the next server and of running ones, and read them back. Raises MpsError."""
        deadline = Deadline(self._timeout_s)
        _, control = self._home(order.home)
        control.set_defaults(order.limits, deadline.left_s)
        for server in control.servers(deadline.left_s):
            control.set_limits(server, order.limits, deadline.left_s)

    @as_mps_error()
    def look(self, order: WatchMps) -> MpsSeen:
        """The state of a daemon; not alive only when its process is gone. Raises MpsError when that is not known."""
        deadline = Deadline(self._timeout_s)
        directory, control = self._home(order.home)
        gone = MpsSeen(order.token, alive=False)
        if not order.pid or self._processes.started_at(order.pid) != order.started_at:
            return gone
        log = self._log_of(directory)
        try:
            servers = control.servers(deadline.left_s)
            log.read()
            faults: list[str] = []
            clients: list[int] = []
            for server in servers:
                state, served = control.state_of(server, deadline.left_s)
                clients.extend(served)
                if state == "FAULT":
                    said = directory.last_line("server.log")
                    faults.append(f"server {server} is in state FAULT" + (f": {said}" if said else ""))
                user = log.owner_of(server)
                if state is not None and user not in {None, order.uid}:
                    faults.append(f"server {server} is of uid {user}, not of uid {order.uid}")
        except NoDaemonError:
            if self._processes.started_at(order.pid) != order.started_at:
                return gone
            raise
        log.served(tuple(clients))
        return MpsSeen(
            order.token,
            alive=True,
            fault="; ".join(faults),
            clients=tuple(MpsClient(pid, self._processes.pod_of(pid)) for pid in clients),
            waiting=log.waiting_for_another(order.uid),
        )

    @as_mps_error()
    def terminate_clients(self, order: TerminateMpsClients) -> None:
        """Have the servers disconnect clients, each once. Raises MpsError; a dead daemon has no clients. A client is
        listed, with its memory, until its process ends (seen with 580.159). A stopped one is skipped, and reported
        after the others: asked for it, the daemon answers no request until it ends."""
        deadline = Deadline(self._timeout_s)
        directory, control = self._home(order.home)
        stopped = []
        try:
            for server in control.servers(deadline.left_s):
                for pid in sorted(set(control.clients_of(server, deadline.left_s)) & set(order.pids)):
                    if self._processes.is_stopped(pid):
                        stopped.append(pid)
                        continue
                    self._let_go(directory, control, server, pid, deadline)
        except NoDaemonError:
            return
        if stopped:
            pids = ", ".join(map(str, stopped))
            raise MpsError(
                f"home {order.home}: process {pids} is stopped; no server can disconnect it: continue or kill it"
            )

    def _let_go(self, directory: HomeDirectory, control: MpsControl, server: int, pid: int, deadline: Deadline) -> None:
        terminated = TerminatedClients(directory.path, self._processes)
        if not terminated.add(pid):
            return
        refusal = control.terminate(server, pid, deadline.left_s)
        if refusal and pid in control.clients_of(server, deadline.left_s):
            terminated.forget(pid)
            raise MpsError(f"home {directory.home}: server {server} does not disconnect {pid} (it printed: {refusal})")

    @as_mps_error()
    def stop(self, order: StopMps) -> None:
        """Have the daemon quit, or kill it and its servers; remove the directories. Raises MpsError if one stays."""
        deadline = Deadline(self._timeout_s)
        directory, control = self._home(order.home)
        try:
            owner = directory.read()
        except MpsError as error:
            self._log.warning("home.json is lost", home=order.home, why=str(error))
            owner = None
        running = control.processes("", self._pods_of(owner))
        if any(not process.is_server for process in running):
            try:
                control.ask((f"quit -t {_QUIT_S}",), deadline.part_s(0.5))
            except NoAnswerError as error:
                self._log.warning("MPS daemon does not quit", home=order.home, why=str(error))
            except MpsError as error:
                # Another exit status than 0 only says that a server did not end gracefully (manual page, "quit").
                self._log.info("MPS daemon quits", home=order.home, why=str(error))
                self._ending.await_end(running, deadline.part_s(0.5))
            else:
                self._ending.await_end(running, deadline.part_s(0.5))
        # Processes forked meanwhile, and those that do not react.
        self._ending.end(order.home, control.processes("", self._pods_of(owner)), deadline)
        directory.remove()
        self._forget_log(order.home)

    def _home(self, home: HomeId) -> tuple[HomeDirectory, MpsControl]:
        directory = HomeDirectory(self.root, home)
        return directory, self._control_of(directory)

    def _control_of(self, directory: HomeDirectory) -> MpsControl:
        return MpsControl(directory, self._control, self._processes, self._environment)

    def _pods_of(self, owner: HomeOwner | None) -> frozenset[str]:
        """The pods that a home's daemon may be in: those of the agents that had it."""
        return frozenset({"", self._pod} | ({owner.agent_pod} if owner is not None else set()))

    def _answering(self, directory: HomeDirectory, owner: HomeOwner | None, deadline: Deadline) -> MpsProcess | None:
        daemon = self._running(directory, owner, deadline)
        if daemon is None:
            return None
        try:
            self._control_of(directory).servers(deadline.part_s(0.4))
        except (NoDaemonError, NoAnswerError) as error:
            self._log.warning("MPS daemon does not answer", home=directory.home, pid=daemon.pid, why=str(error))
            return None
        return daemon

    def _running(
        self, directory: HomeDirectory, owner: HomeOwner | None, deadline: Deadline, pids: tuple[int, ...] | None = None
    ) -> MpsProcess | None:
        if owner is None:
            return None
        control = self._control_of(directory)
        running = control.processes(owner.device, self._pods_of(owner), pids)
        daemons = [process for process in running if not process.is_server]
        for _ in deadline.pauses():
            if len(daemons) < 2:
                break  # a newly forked server looks like its daemon for a moment
            running = control.processes(owner.device, self._pods_of(owner))
            daemons = [process for process in running if not process.is_server]
        return daemons[0] if daemons else None

    def _launch(
        self, directory: HomeDirectory, control: MpsControl, owner: HomeOwner, deadline: Deadline
    ) -> MpsProcess:
        """Start a daemon and wait until it answers, as one process: its forks look like it at first. A killed agent may
        leave a launcher that cannot be recognised yet; then two daemons share one directory: both are ended, and one is
        started."""
        control.launch(owner.device, deadline.left_s)
        why = "it has no process"
        several = Deadline(_FORKING_S)
        for _ in deadline.pauses():
            running = control.processes(owner.device, self._pods_of(owner))
            if len(running) > 1:
                why = f"{len(running)} processes run for it"
                if several.over:
                    self._ending.end(directory.home, running, deadline)
                    directory.prepare(owner)
                    control.launch(owner.device, deadline.left_s)
                    several = Deadline(_FORKING_S)
                continue
            several = Deadline(_FORKING_S)
            if not running:
                continue
            try:
                control.servers(deadline.left_s)
            except (NoDaemonError, NoAnswerError) as error:
                why = str(error)
                continue
            if self._processes.started_at(running[0].pid) == running[0].started_at:
                return running[0]
        said = directory.last_line("control.log")
        raise MpsError(f"home {directory.home}: its MPS control daemon was not ready in time: {why}; {said}")

    def _await_server(self, directory: HomeDirectory, control: MpsControl, uid: int, deadline: Deadline) -> int:
        """The server for a user, once it takes clients; started if there is none."""
        log = self._log_of(directory)
        servers = control.start_server(uid, deadline.left_s)
        server = servers[0] if servers else 0
        for _ in deadline.pauses():
            try:
                state, _ = control.state_of(server, deadline.left_s) if server else (None, ())
            except NoAnswerError:
                continue  # the time is over, or will be in the next round
            log.read()
            if state is None:
                said = directory.last_line("server.log") or directory.last_line("control.log")
                hint = directory.why_closed_to(uid)
                text = f"home {directory.home}: its server for uid {uid} ended at its start: {said}"
                raise MpsError(f"{text}; {hint}" if hint else text)
            user = log.owner_of(server)
            if user not in {None, uid}:
                raise MpsError(f"home {directory.home}: its server {server} is of uid {user}, not of uid {uid}")
            # A server whose start is no longer in the log is an old one (535.261 reports no state).
            if state != "INITIALIZING" and (state or log.is_ready(server) or user is None):
                return server
        raise MpsError(
            f"home {directory.home}: its server {server} was not ready within {self._timeout_s:g} s: "
            f"{directory.last_line('server.log') or directory.last_line('control.log')}"
        )

    def _log_of(self, directory: HomeDirectory) -> ControlLog:
        with self._guard:
            log = self._logs.get(directory.home)
            if log is None:
                log = self._logs[directory.home] = ControlLog(directory.log, self._processes)
            return log

    def _forget_log(self, home: HomeId) -> None:
        with self._guard:
            self._logs.pop(home, None)
