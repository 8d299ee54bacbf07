"""nats-servers in containers of an image made here, so that the same tests hold of an image; nothing is pulled."""

import asyncio
import importlib.util
import json
import os
import shutil
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from factories.broker.nats_server import ServerProcess
from factories.images import docker

from sluice.runtime.nats_server.server_config import BrokerError

if TYPE_CHECKING:
    from testcontainers.core.container import DockerContainer

ENDED_BY_SIGNAL = 128
"""A container's exit code is this plus the number of the signal that ended it."""
HARDENED: dict[str, Any] = {
    "network_mode": "host",
    "read_only": True,
    "cap_drop": ["ALL"],
    "security_opt": ["no-new-privileges"],
}
"""As the manifests run it, but for the network."""


def why_not() -> str:
    """Why there are no containers for tests here; empty when there are."""
    if sys.platform != "linux":
        return "a container shares this machine's network only on Linux"
    if not os.environ.get("DOCKER_HOST", "unix:").startswith("unix:"):
        return "DOCKER_HOST is an engine on another machine, which has not our folders"
    if importlib.util.find_spec("testcontainers") is None:
        return "testcontainers is not installed"
    if shutil.which("docker") is None:
        return "there is no docker on PATH"
    asked = docker("info", "--format", "{{json .}}")
    about = json.loads(asked.stdout) if asked.returncode == 0 else {}
    if not about.get("ServerVersion"):
        return "no Docker engine answers"
    if about["OperatingSystem"] == "Docker Desktop":
        return "Docker Desktop's containers do not share this machine's network"
    if any("rootless" in option for option in about["SecurityOptions"] or ()):
        return "a rootless engine's containers cannot be this user"
    return ""


class ContainerProcess:
    """A nats-server in a container, with the interface of a process."""

    def __init__(self, container: "DockerContainer", loop: asyncio.AbstractEventLoop) -> None:
        """It is running. Its end is waited for in a thread, for the client of the engine only blocks."""
        self._container = container
        self._running = container.get_wrapped_container()
        self._running.reload()
        self._pid = int(self._running.attrs["State"]["Pid"])
        self._loop = loop
        self._ended: asyncio.Future[int] = loop.create_future()
        threading.Thread(target=self._until_ended, daemon=True).start()

    @property
    def pid(self) -> int:
        """Its process, as this machine counts them."""
        return self._pid

    @property
    def returncode(self) -> int | None:
        """None while it runs; the negative of the signal that ended it."""
        return self._ended.result() if self._ended.done() else None

    def send_signal(self, signal: int, /) -> None:
        """Send it a signal. Raises ProcessLookupError when it has ended."""
        from docker.errors import APIError  # noqa: PLC0415

        try:
            self._running.kill(signal)
        except APIError as error:
            if error.response is not None and error.response.status_code in {404, 409}:  # removed, or not running
                raise ProcessLookupError from error
            raise

    async def wait(self) -> int:
        """Wait for its end; then its container is gone."""
        return await asyncio.shield(self._ended)

    def _until_ended(self) -> None:
        code = int(self._running.wait()["StatusCode"])
        self._container.stop()
        self._loop.call_soon_threadsafe(
            self._ended.set_result, ENDED_BY_SIGNAL - code if code > ENDED_BY_SIGNAL else code
        )


class ContainerLaunch:
    """Starts servers from an image."""

    def __init__(self, image: str) -> None:
        self._image = image

    async def __call__(self, config: Path, log: Path) -> ServerProcess:
        """A container, as this user. Raises BrokerError."""
        return await asyncio.to_thread(self._start, config, log, asyncio.get_running_loop())

    def _start(self, config: Path, log: Path, loop: asyncio.AbstractEventLoop) -> ServerProcess:
        from docker.errors import APIError  # noqa: PLC0415 - there are tests to be run without it
        from testcontainers.core.config import testcontainers_config  # noqa: PLC0415
        from testcontainers.core.container import DockerContainer  # noqa: PLC0415

        # What cleans up after a run that was killed is an image that would have to be pulled.
        testcontainers_config.ryuk_disabled = True
        folder = str(config.parent)
        container = (
            DockerContainer(self._image)
            .with_command(["-c", str(config), "-l", str(log)])
            .with_volume_mapping(folder, folder, "rw")
            .with_kwargs(user=f"{os.getuid()}:{os.getgid()}", **HARDENED)
        )
        try:
            container.start()
        except APIError as error:
            container.stop()
            raise BrokerError(f"the engine does not start {self._image}: {error.explanation}") from error
        return ContainerProcess(container, loop)
