"""Sockets of a kubelet's plugins: each appears at its path when it listens, and only our own is removed."""

import contextlib
import os
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio

from sluice.contracts.dra.names import DRIVER
from sluice.contracts.kube.names import CSI_DRIVER
from sluice.contracts.pb import pluginregistration_pb2, pluginregistration_pb2_grpc
from sluice.runtime.errors import ServiceError
from sluice.runtime.grpc import transport
from sluice_node_agent.device.mps.home_directory import SOCKET_PATH_BYTES_MAX


def claims_socket(kubelet_root: Path) -> Path:
    return kubelet_root / "plugins" / DRIVER / "dra.sock"


def volumes_socket(kubelet_root: Path) -> Path:
    """The socket of the CSI driver."""
    return kubelet_root / "plugins" / CSI_DRIVER / "csi.sock"


def registration_socket(kubelet_root: Path, driver: str) -> Path:
    """The socket in the folder that the kubelet watches."""
    return kubelet_root / "plugins_registry" / f"{driver}-reg.sock"


_DIRECTORY_MODE = 0o750


@asynccontextmanager
async def plugin_socket(path: Path, register: Callable[[grpc.aio.Server], None]) -> AsyncIterator[None]:
    """Serve at `path`, for root alone. Raises ServiceError. The socket is renamed once it listens, and only our
    own is removed at the end. A kubelet ignores names that begin with a dot (pluginwatcher/plugin_watcher.go)."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    _make_way(path, draft)
    async with transport.serve(register, address=f"unix:{draft}"):
        own = _put_in_place(draft, path)
        try:
            yield
        finally:
            _remove_own(path, own)


def _make_way(path: Path, draft: Path) -> None:
    excess = len(os.fsencode(draft)) - SOCKET_PATH_BYTES_MAX
    if excess > 0:
        raise ServiceError(
            f"the socket {path} cannot be made: its path while it is made, {draft}, is {excess} bytes longer than the "
            f"kernel takes ({SOCKET_PATH_BYTES_MAX}); kubelet_root must be shorter"
        )
    try:
        path.parent.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
        _unlink_socket(draft)
    except OSError as error:
        raise ServiceError(f"the socket {path} cannot be made: {error}") from error


def _put_in_place(draft: Path, path: Path) -> int:
    """Rename the socket over one that a killed driver left. Returns its inode."""
    try:
        draft.chmod(0o600)
        _unlink_socket(path)
        draft.rename(path)
        return path.stat().st_ino
    except OSError as error:
        raise ServiceError(f"the socket {path} cannot be made: {error}") from error


def _remove_own(path: Path, inode: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        if path.lstat().st_ino == inode:
            path.unlink()


def _unlink_socket(path: Path) -> None:
    """Remove a killed driver's socket. Raises OSError, also when it is not a socket."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise FileExistsError(f"{path} is there and is no socket")
    except FileNotFoundError:
        return
    path.unlink(missing_ok=True)


Registered = Callable[[str], Awaitable[None]]
"""Gets the reason of a rejection; empty: the plugin is registered."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """What a kubelet learns of a plugin. `endpoint` is a bare path."""

    type: str
    name: str
    endpoint: str
    versions: tuple[str, ...]


class Registration(pluginregistration_pb2_grpc.RegistrationServicer):
    """Registers one plugin."""

    def __init__(self, plugin: Plugin, without: str, log: Any, registered: Registered | None = None) -> None:
        """`without`: what does not work while the kubelet rejects the plugin, for the log."""
        self.plugin = plugin
        self._without = without
        self._log = log
        self._registered = registered

    async def GetInfo(self, *_: object) -> pluginregistration_pb2.PluginInfo:  # noqa: N802
        plugin = self.plugin
        return pluginregistration_pb2.PluginInfo(
            type=plugin.type, name=plugin.name, endpoint=plugin.endpoint, supported_versions=plugin.versions
        )

    async def NotifyRegistrationStatus(  # noqa: N802
        self,
        request: pluginregistration_pb2.RegistrationStatus,
        context: grpc.aio.ServicerContext,  # noqa: ARG002
    ) -> pluginregistration_pb2.RegistrationStatusResponse:
        """The kubelet's result. No other message reports a rejection."""
        plugin = self.plugin
        if request.plugin_registered:
            self._log.info("the kubelet has registered the driver", driver=plugin.name)
        else:
            self._log.error(f"the kubelet rejected the driver: {self._without}", driver=plugin.name, why=request.error)
        if self._registered is not None:
            why = "" if request.plugin_registered else request.error or "it gave no reason"
            await self._registered(why)
        return pluginregistration_pb2.RegistrationStatusResponse()

    def register(self, server: grpc.aio.Server) -> None:
        """Add the service to a server."""
        pluginregistration_pb2_grpc.add_RegistrationServicer_to_server(self, server)


@asynccontextmanager
async def plugin_registered(
    kubelet_root: Path, registration: Registration, register: Callable[[grpc.aio.Server], None]
) -> AsyncIterator[None]:
    """Serve a plugin. A kubelet that finds the registration calls it at once: it starts first, and ends last."""
    plugin = registration.plugin
    registry = registration_socket(kubelet_root, plugin.name)
    async with plugin_socket(Path(plugin.endpoint), register), plugin_socket(registry, registration.register):
        yield
