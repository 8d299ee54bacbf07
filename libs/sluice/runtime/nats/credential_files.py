"""
A service's NATS credentials from its settings: its user, by a password, token or certificate in files.

Files are read again when they change, and used at the next connection; invalid ones are only logged.
"""

import ssl
from pathlib import Path

from sluice.runtime.errors import ServiceError
from sluice.runtime.nats.credentials import Credentials
from sluice.runtime.settings import CommonSettings
from sluice.runtime.tls import certificate_files

_PASSWORD_BYTES_MAX = 1024
_TOKEN_BYTES_MAX = 16 * 1024


class CredentialError(ServiceError):
    """A password or a certificate cannot be read. One sentence with the file."""


class CredentialFiles:
    """Credentials in files, as `sluice.runtime.nats.credentials.CredentialSource`."""

    def __init__(self, settings: CommonSettings, user: str, *, look_s: float = certificate_files.CHECK_EVERY_S) -> None:
        """Read the files, which blocks. Raises CredentialError."""
        self.user = user
        self._password_file = settings.nats_password_file
        self._token_file = settings.nats_token_file
        self._ca_file = settings.nats_ca_file
        self._server_name = settings.nats_server_name
        self._certificate = _certificate_files(settings)
        self._material: certificate_files.CertificateMaterial | None = None
        own = self._certificate.paths if self._certificate is not None else ()
        paths = dict.fromkeys(
            path for path in (self._ca_file, self._password_file, self._token_file, *own) if path is not None
        )
        self._files = certificate_files.WatchedFiles(paths, self._read, part="bus identity", look_s=look_s)
        self._ending = certificate_files.ExpiryWarning("bus identity", own[0]) if own else None

    def current(self) -> Credentials:
        found = self._files.current()
        if self._ending is not None and self._material is not None:
            self._ending.look(self._material)
        return found

    def _read(self) -> Credentials:
        password = ""
        if self._token_file is not None:
            password = _secret_in("nats_token_file", self._token_file, _TOKEN_BYTES_MAX)
        elif self._password_file is not None:
            password = _secret_in("nats_password_file", self._password_file, _PASSWORD_BYTES_MAX)
        is_token = self._token_file is not None
        if self._ca_file is None:
            return Credentials(self.user, password, is_token=is_token)
        try:
            trusts = certificate_files.read_pem_file("nats_ca_file", self._ca_file)
            context = certificate_files.trusting("nats_ca_file", self._ca_file, trusts)
            if self._certificate is not None:
                self._material = self._certificate.read()
                context.load_cert_chain(self._certificate.certificate_file, self._certificate.key_file, password="")
        except certificate_files.CertificateError as error:
            raise CredentialError(str(error)) from error
        except (ssl.SSLError, OSError) as error:  # changed since it was tried; it is read again
            raise CredentialError(f"nats_certificate_file: {describe_error(error)}") from error
        return Credentials(self.user, password, context, self._server_name, trusts, is_token=is_token)


def credentials_from_settings(
    settings: CommonSettings, user: str = "", *, look_s: float = certificate_files.CHECK_EVERY_S
) -> CredentialFiles | None:
    """The credentials of `user` (else `nats_user`); None where none are configured. Blocks. Raises CredentialError."""
    _certificate_files(settings)
    if settings.nats_token_file is not None and settings.nats_password_file is not None:
        raise CredentialError(
            "nats_token_file and nats_password_file are both set: set the one that the broker expects"
        )
    if settings.nats_password_file is None and settings.nats_token_file is None and settings.nats_ca_file is None:
        return None
    return CredentialFiles(settings, user or settings.nats_user, look_s=look_s)


def describe_error(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or type(error).__name__
    return (error.strerror if isinstance(error, OSError) else None) or type(error).__name__


def _certificate_files(settings: CommonSettings) -> certificate_files.CertificateFiles | None:
    certificate, key, ca = settings.nats_certificate_file, settings.nats_key_file, settings.nats_ca_file
    if certificate is None and key is None:
        return None
    if certificate is None or key is None or ca is None:
        named = {"nats_certificate_file": certificate, "nats_key_file": key, "nats_ca_file": ca}
        missing = ", ".join(name for name, path in named.items() if path is None)
        raise CredentialError(f"{missing} must be set too: a certificate on the bus needs its key and an authority")
    # The authority that signs the broker is not the one that signs users: with one for both, a user could pose as
    # broker.
    return certificate_files.CertificateFiles(certificate, key, ca, settings="nats", vouches=False)


def _secret_in(setting: str, path: Path, bytes_max: int) -> str:
    certificate_files.warn_if_open(setting, path)
    try:
        with path.open("rb") as file:
            secret = file.read(bytes_max + 1).decode().strip()
    except UnicodeDecodeError as error:
        raise CredentialError(f"{setting}: {path} cannot be read: it is no UTF-8") from error
    except OSError as error:
        raise CredentialError(f"{setting}: {path} cannot be read: {error.strerror or error}") from error
    what = "token" if setting == "nats_token_file" else "password"
    if not secret:
        raise CredentialError(f"{setting}: {path} is empty; it must hold a {what}")
    if len(secret) > bytes_max:
        raise CredentialError(f"{setting}: {path} is longer than {bytes_max} bytes; it must hold a {what} only")
    return secret
