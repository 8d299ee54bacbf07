"""This process's gRPC certificate and the authorities it trusts. Rights are in `sluice.contracts.rpc_permissions`.

An agent may make its certificate itself (`self_made_identity`): callers trust the one in the agent's last message on
the bus."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn

import grpc
import grpc.aio

from sluice.contracts.rpc_permissions import deny_reason
from sluice.runtime import logs
from sluice.runtime.bounded_dict import BoundedDict
from sluice.runtime.grpc.trace_interceptors import surrounded
from sluice.runtime.settings import CommonSettings
from sluice.runtime.tls import certificate_files

_SAN = "peer_dns"
"""DNS names in the subject alternative names (grpc, include/grpc/grpc_security_constants.h)."""
_LOG_AGAIN_S = 60.0
_SAID_MAX = 256


async def abort(context: grpc.aio.ServicerContext, code: grpc.StatusCode, why: str) -> NoReturn:
    """End a call without an answer."""
    await context.abort(code, why)
    raise AssertionError("abort() raises")


class AuthorizationInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Answers PERMISSION_DENIED, with the reason, to callers without the right."""

    def __init__(self) -> None:
        self._said: BoundedDict[str, float] = BoundedDict(_SAID_MAX)
        self._log = logs.get("rpc")

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        handler = await continuation(details)
        if handler is None:
            return handler
        if handler.request_streaming:
            raise NotImplementedError(f"{details.method}: methods that read a stream are not looked after")

        @asynccontextmanager
        async def admitted(context: grpc.aio.ServicerContext) -> AsyncIterator[None]:
            names = [name.decode(errors="replace") for name in context.auth_context().get(_SAN, ())]
            reason = deny_reason(names, details.method)
            if reason:
                self._say(reason, context.peer())
                await context.abort(grpc.StatusCode.PERMISSION_DENIED, reason)
            yield

        return surrounded(handler, admitted)

    def _say(self, reason: str, peer: str) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._said.get(reason, -_LOG_AGAIN_S) < _LOG_AGAIN_S:
            return
        self._said.put(reason, now)
        self._log.warning("refused a call", why=reason, peer=peer)


class Identity(ABC):
    """The certificate of this process, its key, and the authorities that it trusts. Thread-safe."""

    @abstractmethod
    def current(self) -> certificate_files.CertificateMaterial:
        """What is valid now: another object when the files have changed, the same one until then."""

    def server_credentials(self) -> grpc.ServerCredentials:
        """For a server that requires a certificate of every client. Each handshake uses the files' current content."""
        shown: list[certificate_files.CertificateMaterial] = [self.current()]

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            found = self.current()
            if found is shown[0]:
                return None  # as before (grpc.dynamic_ssl_server_credentials)
            shown[0] = found
            return _configuration(found)

        return grpc.dynamic_ssl_server_credentials(_configuration(shown[0]), fetch, require_client_authentication=True)

    def channel_credentials(self, pinned: bytes = b"") -> grpc.ChannelCredentials:
        """For a client, as the files are now; a channel keeps them for its life. Trusts only `pinned` if given."""
        found = self.current()
        return grpc.ssl_channel_credentials(pinned or found.authority, found.key, found.certificate)


@dataclass(eq=False)
class TlsIdentity(Identity):
    """Everything in files."""

    certificate_file: Path
    key_file: Path
    ca_file: Path
    names: tuple[str, ...] = ()
    look_s: float = certificate_files.CHECK_EVERY_S
    _files: certificate_files.WatchedFiles[certificate_files.CertificateMaterial] = field(init=False, repr=False)
    _ending: certificate_files.ExpiryWarning = field(init=False, repr=False)

    def __post_init__(self) -> None:
        files = certificate_files.CertificateFiles(self.certificate_file, self.key_file, self.ca_file, self.names)
        self._files = certificate_files.WatchedFiles(files.paths, files.read, part="certificate", look_s=self.look_s)
        self._ending = certificate_files.ExpiryWarning("certificate", self.certificate_file)

    def current(self) -> certificate_files.CertificateMaterial:
        found = self._files.current()
        self._ending.look(found)
        return found


def _configuration(found: certificate_files.CertificateMaterial) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(found.key, found.certificate)], found.authority)


@dataclass(frozen=True, slots=True)
class TransportSecurity:
    """How a process uses gRPC: with its certificate, or in plain text on the loopback only."""

    identity: Identity | None = None
    plain_text: bool = False
    """Allow plain text to and from any address: the network is trusted."""
    pinned: str = ""
    """The one certificate (PEM) that a server must have; empty: any of the authorities."""

    def trusting(self, certificate: str) -> "TransportSecurity":
        return replace(self, pinned=certificate)

    def current(self) -> certificate_files.CertificateMaterial | None:
        """What a new channel would use; compare it to decide whether to replace an open one."""
        return self.identity.current() if self.identity is not None else None


LOOPBACK = TransportSecurity()


def security_from_settings(
    settings: CommonSettings, *names: str, make: Callable[[Path, Sequence[str]], Identity] | None = None
) -> TransportSecurity:
    """From the settings; a certificate must have all `names`; `make`: by `grpc_ca_file`. Raises CertificateError."""
    files = {
        "grpc_certificate_file": settings.grpc_certificate_file,
        "grpc_key_file": settings.grpc_key_file,
        "grpc_ca_file": settings.grpc_ca_file,
    }
    paths = [path for path in files.values() if path is not None]
    if not paths:
        return TransportSecurity(plain_text=settings.grpc_plain_text)
    if settings.grpc_plain_text:
        raise certificate_files.CertificateError(
            "grpc_plain_text is true, and grpc_certificate_file is set; only one of them can hold"
        )
    if make is not None and paths == [settings.grpc_ca_file]:
        return TransportSecurity(make(paths[0], names))
    missing = [name for name, path in files.items() if path is None]
    if missing:
        raise certificate_files.CertificateError(f"{', '.join(missing)} must be set too: all three of them, or none")
    certificate_file, key_file, ca_file = paths
    return TransportSecurity(TlsIdentity(certificate_file, key_file, ca_file, names))
