"""Credentials and trust for the API server: a kubeconfig or a service account, read again on change for new calls.
Invalid files only produce a log line, which never shows their content."""

import asyncio
import os
import signal
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from sluice.contracts.manifests import ManifestLimits
from sluice.contracts.manifests.yaml_documents import YamlError, read_documents
from sluice.runtime import logs, optional_imports, text_files
from sluice.runtime.errors import ServiceError
from sluice.runtime.tls.certificate_files import Signature, file_signature

with optional_imports.without("kubernetes_validate"):  # for its synchronous client, which it imports as well
    from kubernetes.aio import client, config
    from kubernetes.aio.config.config_exception import ConfigException

RELOAD_S = 1.0  # how often credentials are checked, and read again at most
EXEC_S = 30.0  # how long reading a kubeconfig may take: it may run a program that waits for input
LIMITS = ManifestLimits(documents_max=1)  # for a kubeconfig: one with fifty clusters' certificates has some 100 KiB
_NOT_THE_SHAPE = (TypeError, KeyError, ValueError, AttributeError)  # raised for YAML that is no kubeconfig


class Session:
    """A pool of connections with one set of credentials."""

    def __init__(self, configuration: client.Configuration) -> None:
        """Opens nothing before the first call. Raises ServiceError for files that TLS cannot use."""
        self.configuration = configuration
        try:
            self.api = client.ApiClient(configuration)
        except (ssl.SSLError, OSError) as error:
            why = (error.reason if isinstance(error, ssl.SSLError) else error.strerror) or type(error).__name__
            raise ServiceError(f"the certificates for the API server are invalid: {why}") from error
        self.calls = 0  # calls under way

    async def token(self) -> str:
        """The authorisation header; the client reads a service account's token again every minute."""
        found = (await self.configuration.auth_settings()).get("BearerToken")
        return str(found["value"] or "").strip() if found else ""

    async def close(self) -> None:
        await self.api.close()  # type: ignore[no-untyped-call]


class KubeCredentials:
    """The session for new calls."""

    def __init__(self, kubeconfig: Path | None) -> None:
        """Use `connect`. None for the service account of this pod."""
        self._kubeconfig = kubeconfig
        self._session: Session | None = None
        self._retired: dict[Session, None] = {}
        self._seen: Signature = ()
        self._look_at = self._reload_at = float("-inf")
        self._reading = asyncio.Lock()
        self._log = logs.get("kubernetes")

    async def connect(self) -> None:
        """Read the credentials for the first time. Raises ServiceError when there are none that work."""
        self._session = Session(await load(self._kubeconfig))
        self._seen = await self._signature()

    @property
    def session(self) -> Session:
        assert self._session is not None, "not connected"
        return self._session

    @asynccontextmanager
    async def used(self) -> AsyncIterator[Session]:
        await self._look()
        session = self.session
        session.calls += 1
        try:
            yield session
        finally:
            session.calls -= 1
            await self._close_where_unused(session)

    async def has_other(self, session: Session, refused: str) -> bool:
        """Whether there is another token than the refused one; it is read again to find out."""
        async with self._reading:
            now = asyncio.get_running_loop().time()
            if await session.token() == refused and now >= self._reload_at:
                self._reload_at = now + RELOAD_S
                await load(self._kubeconfig, session.configuration)
            return await session.token() != refused

    async def close(self) -> None:
        for session in (*self._retired, *([self._session] if self._session is not None else [])):
            await session.close()
        self._retired.clear()

    async def _look(self) -> None:
        now = asyncio.get_running_loop().time()
        if now < self._look_at or self._reading.locked():
            return
        self._look_at = now + RELOAD_S
        async with self._reading:
            found = await self._signature()
            if found == self._seen:
                return
            try:
                new = Session(await load(self._kubeconfig))
            except ServiceError as error:
                self._seen = found
                self._log.error("the new credentials are invalid; the old ones stay in use", why=str(error))
                return
            # A call may be cancelled at each await: everything is swapped from here on, without one.
            old, self._session, self._seen = self.session, new, found
            self._retired[old] = None
            self._log.info("the credentials for the API server were reloaded")
            await self._close_where_unused(old)
            self._seen = await self._signature()  # they may name other files now

    async def _close_where_unused(self, session: Session) -> None:
        if session in self._retired and not session.calls:
            await session.close()
            self._retired.pop(session, None)

    async def _signature(self) -> Signature:
        configuration: Any = self.session.configuration
        named = (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file)
        paths = [Path(each) for each in (self._kubeconfig, *named) if each]
        return await asyncio.to_thread(file_signature, paths)


async def load(kubeconfig: Path | None, configuration: client.Configuration | None = None) -> client.Configuration:
    """Read credentials, into an existing configuration if given. Raises ServiceError."""
    into = client.Configuration() if configuration is None else configuration
    if kubeconfig is None:
        try:
            config.load_incluster_config(client_configuration=into)  # type: ignore[no-untyped-call]
        except (ConfigException, OSError) as error:
            raise ServiceError(
                f"the service account of the pod cannot be used: {error} "
                "(outside a pod, set SLUICE_POD_WATCHER_KUBECONFIG)"
            ) from error
        return into
    try:
        await asyncio.to_thread(_check, kubeconfig)
        await _load_in_time(kubeconfig, into)
    except OSError as error:
        raise ServiceError(f"the kubeconfig {kubeconfig} cannot be read: {error.strerror or error}") from error
    except YamlError as error:
        where = f" in line {error.line}" if error.line else ""
        raise ServiceError(f"{kubeconfig} is not a valid kubeconfig: {error.why}{where}") from error
    except (ConfigException, yaml.YAMLError, *_NOT_THE_SHAPE) as error:
        raise ServiceError(f"{kubeconfig} is not a valid kubeconfig: {_told(error)}") from error
    return into


async def _load_in_time(kubeconfig: Path, into: client.Configuration) -> None:
    """With a timeout, as the client runs the program that a kubeconfig names. Raises ServiceError."""
    before = _children()
    try:
        async with asyncio.timeout(EXEC_S):
            await config.load_kube_config(  # type: ignore[no-untyped-call]
                config_file=str(kubeconfig), client_configuration=into, persist_config=False
            )
    except TimeoutError:
        for child in _children() - before:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        raise ServiceError(
            f"the credentials program (exec) of {kubeconfig} did not answer within {EXEC_S:g} s and was "
            "stopped; use one that needs no input"
        ) from None


def _children() -> set[int]:
    found: set[int] = set()
    for listed in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # a thread that ended meanwhile
            found.update(map(int, listed.read_text().split()))
    return found


def _check(kubeconfig: Path) -> None:
    """Check a kubeconfig before the client reads it: the client takes a missing file for an empty one, and its YAML
    parser has no bounds. Ten lines of aliases or merged keys would keep it busy forever. Raises OSError, YamlError."""
    read_documents(text_files.read_named_text(kubeconfig, LIMITS.file_bytes_max), LIMITS)


def _told(error: Exception) -> str:
    """What is wrong, and where; never the text around it, which may be a token."""
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        where = f" in line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        return f"{type(error).__name__}: {error.problem or error.context or 'invalid YAML'}{where}"
    if isinstance(error, ConfigException):
        return " ".join(str(error).split())
    return f"{type(error).__name__} while parsing it"
