"""
Who a service is on the bus, from its settings: its user, its password from a file, whom it trusts.

The one place that reads the password; it is never part of a URL, a setting or a log line.
"""

import ssl

from sluice.runtime.errors import ServiceError
from sluice.runtime.nats_connection import Credentials
from sluice.runtime.settings import CommonSettings

_PASSWORD_BYTES_MAX = 1024


class IdentityError(ServiceError):
    """A password or a certificate cannot be read. One sentence with the file."""


def credentials_of(settings: CommonSettings, user: str = "") -> Credentials | None:
    """
    How `user` (else `nats_user`) says who he is; None where neither a password nor an authority is configured.

    Blocks for reading small files. Raises IdentityError.
    """
    if settings.nats_password_file is None and settings.nats_ca_file is None:
        return None
    password = ""
    if settings.nats_password_file is not None:
        try:
            with settings.nats_password_file.open(encoding="utf-8") as file:
                password = file.read(_PASSWORD_BYTES_MAX).strip()
        except (OSError, UnicodeDecodeError) as error:
            raise IdentityError(f"nats_password_file: {settings.nats_password_file} cannot be read: {error}") from error
        if not password:
            raise IdentityError(f"nats_password_file: {settings.nats_password_file} is empty; it must hold a password")
    context = None
    if settings.nats_ca_file is not None:
        try:
            context = ssl.create_default_context(cafile=settings.nats_ca_file)
        except (OSError, ssl.SSLError) as error:
            raise IdentityError(f"nats_ca_file: {settings.nats_ca_file} holds no certificates: {error}") from error
    return Credentials(user or settings.nats_user, password, context)
