"""The time quota of a node's homes: one server each, with sockets and the client library in the home's directory, which
all its containers see read-only (`device.mounts`). A process belongs to the tenant of the socket that it connected to,
under a name that cannot be guessed; if its cgroup names a pod, that must match."""

import os
import shutil
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from sluice.contracts.ids import HomeId
from sluice.contracts.ticket_paths import QUOTA, QUOTA_LIBRARY
from sluice.runtime import logs
from sluice_node_agent.core.events import QuotaSeen, QuotaTenant
from sluice_node_agent.core.instructions import SetQuotas
from sluice_node_agent.core.quota.tenants import TenantUsage
from sluice_node_agent.shell.quota.server import QuotaServer, QuotaServerError

_DIRECTORY_MODE = 0o711
"""A container's user can pass, and finds no name that it does not know."""
_LIBRARY_MODE = 0o555
_PERMILLE = 1000
_MIB = 1024**2


class QuotaControllerError(Exception):
    """The time quota of a home cannot be served as ordered. One sentence."""


class QuotaController:
    """The token schedulers of one agent. Thread-safe; calls block briefly, and raise QuotaControllerError."""

    def __init__(self, root: Path, library: Path, owner_of: Callable[[int], str]) -> None:
        """Serve homes below `root` with the client library. `owner_of` returns the pod of a process, or empty."""
        self._root = root
        self._library = library
        self._owner_of = owner_of
        self._lock = threading.Lock()
        self._servers: dict[HomeId, QuotaServer] = {}
        self._tenants: dict[HomeId, dict[str, QuotaTenant | None]] = {}
        """The tenants that each scheduler has; None for one whose size is uncertain."""
        self._in_doubt: set[HomeId] = set()
        """Homes whose scheduler may have carried out a call after its timeout."""
        self._shown: dict[HomeId, dict[str, TenantUsage]] = {}
        """The counters of the last poll, replaced as a whole: read without the lock."""
        self._log = logs.get("quota")

    def set(self, order: SetQuotas) -> None:
        with self._lock:
            try:
                self._set(order)
            except (OSError, ValueError, QuotaServerError) as error:
                if isinstance(error, QuotaServerError):
                    self._in_doubt.add(order.home)
                raise QuotaControllerError(f"the time quota of home {order.home} cannot be served: {error}") from error

    def seen(self, home: HomeId) -> QuotaSeen | None:
        """The state of a home's scheduler; None where there is none."""
        with self._lock:
            server = self._servers.get(home)
            if server is None:
                return None
            try:
                usage = server.usage()
            except QuotaServerError as error:
                self._log.error("the time quota of a home has ended by itself", home=home, why=str(error))
                self._show(home, {})
                return QuotaSeen(alive=False)
            if missing := self._missing(home):
                why = "a file by which tenants reach the time quota is gone; the quota server restarts"
                self._log.error(why, missing=missing)
                self._end(home)
                return QuotaSeen(alive=False)
            self._show(home, usage)
        greeted = {pid for used in usage.values() for pid in used.greeted_pids}
        return QuotaSeen(alive=True, greeted=tuple(sorted(greeted)))

    def end(self, home: HomeId) -> None:
        with self._lock:
            self._end(home)

    def close(self) -> None:
        """Stop all of them: clients follow their fail mode until the next agent runs. Raises QuotaServerError."""
        with self._lock:
            for home in list(self._servers):
                self._stop(home)

    def usage(self) -> dict[str, TenantUsage]:
        """The counters of every tenant when its home was last `seen`. Never waits, since the event loop calls it."""
        return {name: used for tenants in self._shown.values() for name, used in tenants.items()}

    def _end(self, home: HomeId) -> None:
        try:
            self._stop(home)
        except QuotaServerError as error:
            raise QuotaControllerError(str(error)) from error

    def _missing(self, home: HomeId) -> list[str]:
        """Files without which the time of new processes is not enforced: the directory was emptied."""
        tenants = [tenant for tenant in self._tenants.get(home, {}).values() if tenant is not None]
        directory = self._root / home / QUOTA
        files = [directory / QUOTA_LIBRARY, *(directory / tenant.socket for tenant in tenants)] if tenants else []
        return [str(file) for file in files if not file.exists()]

    def _set(self, order: SetQuotas) -> None:
        wanted = {tenant.name: tenant for tenant in order.tenants}
        server = self._servers.get(order.home)
        if server is not None and server.failure is not None:
            self._stop(order.home)
            server = None
        if not wanted:
            self._stop(order.home)
            return
        if server is None:
            self._place_library(self._root / order.home / QUOTA)
            server = self._servers[order.home] = QuotaServer(order.home)
            self._tenants[order.home] = {}
            server.start()
        if order.home in self._in_doubt:
            self._tenants[order.home] = dict.fromkeys(server.usage())
            self._in_doubt.discard(order.home)
        has = self._tenants[order.home]
        for name in has.keys() - wanted.keys():
            server.remove_tenant(name)
            del has[name]
            self._show(order.home, {one: used for one, used in self._shown.get(order.home, {}).items() if one != name})
        for name, tenant in wanted.items():
            if has.get(name) == tenant:
                continue
            size: dict[str, Any] = {
                "request": tenant.request_permille / _PERMILLE,
                "limit": tenant.limit_permille / _PERMILLE,
                "width_percent": tenant.width_percent,
                "memory_bytes": tenant.memory_mib * _MIB,
            }
            if name in has:
                server.change_tenant(name, **size)
            else:
                place = self._root / order.home / QUOTA / tenant.socket
                server.add_tenant(name, place, uid=tenant.uid, admits=partial(self._admits, tenant), **size)
            has[name] = tenant

    def _admits(self, tenant: QuotaTenant, pid: int) -> bool:
        """Whether a process may be the tenant's: it is in no pod, or in the tenant's, or that pod is unknown."""
        return not tenant.owner or self._owner_of(pid) in {"", tenant.owner}

    def _place_library(self, directory: Path) -> None:
        """Atomic: a process may be loading the existing one."""
        directory.mkdir(exist_ok=True)
        directory.chmod(_DIRECTORY_MODE)
        for left in directory.glob("*.sock"):  # of a killed agent; dead
            left.unlink()
        draft = directory / f".{QUOTA_LIBRARY}.{os.getpid()}"
        shutil.copyfile(self._library, draft)
        draft.chmod(_LIBRARY_MODE)
        draft.replace(directory / QUOTA_LIBRARY)

    def _show(self, home: HomeId, usage: dict[str, TenantUsage]) -> None:
        others = {one: tenants for one, tenants in self._shown.items() if one != home}
        self._shown = others | ({home: usage} if usage else {})

    def _stop(self, home: HomeId) -> None:
        self._show(home, {})
        server = self._servers.pop(home, None)
        self._tenants.pop(home, None)
        self._in_doubt.discard(home)
        if server is not None:
            server.stop()
