"""Settings of a service: one TOML file and the environment (which wins), read once, into one frozen object.

The file has common fields at its top level and each service's own in a table of its name. In the environment a common
field is `SLUICE_<FIELD>`, one for a service alone `SLUICE_<SERVICE>_<FIELD>`. An unknown key or a wrong value ends the
start with a sentence that names it. No other module reads the environment."""

import math
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import msgspec

from sluice.contracts.bus.store_sizes import HISTORY_BYTES_MAX, HISTORY_MIB_MIN, MIB
from sluice.contracts.reasons import nearest, shorten
from sluice.contracts.toml_tables import SHOWN_MAX, parse_toml, toml_text_of
from sluice.runtime.errors import ServiceError
from sluice.runtime.text_files import read_named_text

SERVICES = ("pod-watcher", "allocator", "node-agent", "inventory", "console")
PREFIX = "SLUICE_"
CONFIG = "SLUICE_CONFIG"
FILE_BYTES_MAX = 256 * 1024
"""A larger settings file is not read; all settings of all services fill a few KiB."""
TICK_MAX_S = 10.0
"""Of every service's `tick_s`: a core without a turn for three times as long is restarted (`grpc.health`)."""
NAME_MAX = 100
"""Characters of a name that is compared with those of settings; none is as long."""

# Kubernetes puts an address of every Service of the namespace into each container's environment, in the form of its
# name: a Service `sluice-inventory` would otherwise be an unknown setting of the inventory
# (https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables).
_SERVICE_LINK = re.compile(r".+_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
_SERVICE_LINK_VALUE = re.compile(r"(tcp|udp|sctp)://[^/]+:\d+")


class SettingsError(ServiceError):
    """A setting that is unknown, missing or wrong. The text is one sentence for the person who starts the service."""


class CommonSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What every service may be told. A service's own settings extend this."""

    nats_url: str = "nats://127.0.0.1:4222"
    """The broker, `nats://` or `tls://`, without user or password: logs show it."""
    nats_user: str = ""
    """User on the bus. A node agent's is by default its node's."""
    nats_password_file: Path | None = None
    """File with that user's password. Read again when it changes."""
    nats_token_file: Path | None = None
    """File with a Kubernetes ServiceAccount token for the broker (audience `sluice-bus`), instead of a password. Read
    again when it changes."""
    nats_ca_file: Path | None = None
    """CA certificates (PEM) for the broker's. If set, the connection must be TLS."""
    nats_server_name: str = ""
    """Name in the broker's certificate, where it is not the host of `nats_url` (a port-forward)."""
    nats_certificate_file: Path | None = None
    """Client certificate (PEM) for the bus. Read again when it changes."""
    nats_key_file: Path | None = None
    """Its key (PEM); may be the same file."""
    grpc_certificate_file: Path | None = None
    """Certificate (PEM) for gRPC, server and client. If set, all but Unix sockets is TLS. Reread when it changes."""
    grpc_key_file: Path | None = None
    """Its key (PEM); may be the same file."""
    grpc_ca_file: Path | None = None
    """CA certificates (PEM) for gRPC peers."""
    grpc_plain_text: bool = False
    """Allow gRPC without certificates beyond the loopback."""
    history_mib: Annotated[int, msgspec.Meta(ge=HISTORY_MIB_MIN)] = HISTORY_BYTES_MAX // MIB
    """Size of HISTORY on the broker's disk in MiB, where streams are declared (docs/sizing.md)."""
    data_dir: Path = Path("/var/lib/sluice")
    """State that survives a restart, such as the agent's journal."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe level logged."""
    log_format: Literal["auto", "json", "text"] = "auto"
    """`auto` is text on a terminal, else JSON."""
    otlp_endpoint: str = ""
    """OTLP/HTTP base URL for traces; empty sends none. Headers: `OTEL_EXPORTER_OTLP_HEADERS`."""
    metrics_address: str = ""
    """`host:port` of the Prometheus metrics, plain HTTP; empty serves none."""


def holds_credentials(url: str) -> bool:
    """Whether an address holds a user or a password, as in nats://user:password@host."""
    return "@" in url  # anywhere: a password may hold what ends an address


_SHOWN = {
    "nats_url": "set nats_user and nats_password_file",
    "otlp_endpoint": "OTEL_EXPORTER_OTLP_HEADERS may hold a header for it",
}

S = TypeVar("S", bound=CommonSettings)
_Fields = Mapping[str, msgspec.structs.FieldInfo]


def load(cls: type[S], *, service: str, environ: Mapping[str, str] = os.environ) -> S:
    """The settings of `service`, from the file in SLUICE_CONFIG and `environ`. Raises SettingsError."""
    if service not in SERVICES:
        raise SettingsError(f"{service!r} is no service of Sluice ({', '.join(SERVICES)})")
    fields = {field.name: field for field in msgspec.structs.fields(cls)}
    common = {name for name in fields if name in CommonSettings.__struct_fields__}
    path = environ.get(CONFIG)
    values = _from_file(Path(path), service, fields, common) if path else {}
    values |= _from_environ(environ, service, fields, common)
    for name, field in fields.items():
        if name not in values and field.required:
            raise SettingsError(f"{_variable(service, name, common)} is not set, and has no default")
    for name, instead in _SHOWN.items():  # addresses are shown in logs and in sentences: what is secret has files
        if holds_credentials(str(values.get(name, ""))):
            variable = _variable(service, name, common)
            raise SettingsError(f"{variable} must not hold a user or a password, because it is shown; {instead}")
    try:
        return cls(**values)
    except (ValueError, TypeError) as error:  # a rule over several fields, checked by the class itself
        raise SettingsError(f"settings of {service}: {error}") from error


def _from_file(path: Path, service: str, fields: _Fields, common: set[str]) -> dict[str, Any]:
    try:
        document = parse_toml(read_named_text(path, FILE_BYTES_MAX))
    except OSError as error:
        raise SettingsError(f"the settings file {path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise SettingsError(f"the settings file {path} is {error}") from error
    values: dict[str, Any] = {}
    for key, raw in document.items():
        if key in common:
            values[key] = _convert(fields[key], raw, where=f"{path}: {key}", strict=True)
        elif key in SERVICES and isinstance(raw, dict):
            if key == service:
                values |= _from_table(raw, f"{path}: [{service}]", fields, common)
        elif key in fields:
            raise SettingsError(f"{path}: {key} belongs in the table [{service}]")
        else:
            near = _nearest(key, [*sorted(common), *SERVICES])
            raise SettingsError(f"{path}: there is no setting {shorten(key)}{near}")
    return values


def _from_table(table: Mapping[str, Any], where: str, fields: _Fields, common: set[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, raw in table.items():
        if key in common:
            raise SettingsError(f"{where} {key} belongs to the top of the file: it is common to all services")
        if key not in fields:
            raise SettingsError(f"{where} has no setting {shorten(key)}{_nearest(key, sorted(set(fields) - common))}")
        values[key] = _convert(fields[key], raw, where=f"{where} {key}", strict=True)
    return values


def _from_environ(environ: Mapping[str, str], service: str, fields: _Fields, common: set[str]) -> dict[str, Any]:
    shared: dict[str, Any] = {}
    own: dict[str, Any] = {}
    for variable in sorted(name for name in environ if name.startswith(PREFIX)):
        raw = environ[variable]
        if variable == CONFIG or _is_service_link(variable, raw):
            continue
        owner = next((each for each in SERVICES if variable.startswith(_prefix(each))), None)
        if owner is not None and owner != service:
            continue
        name = variable.removeprefix(PREFIX if owner is None else _prefix(owner)).lower()
        known = common if owner is None else set(fields)
        if name not in known:
            choices = [_variable(service, field, common) for field in sorted(fields)]
            near = _nearest(variable, choices)
            raise SettingsError(f"{shorten(variable)} is set, but there is no such setting{near}")
        target = shared if owner is None else own
        target[name] = _convert(fields[name], _split(fields[name].type, raw), where=variable, strict=False)
    return shared | own


def _prefix(service: str) -> str:
    return f"{PREFIX}{service.replace('-', '_').upper()}_"


def _variable(service: str, name: str, common: Iterable[str]) -> str:
    return f"{PREFIX if name in common else _prefix(service)}{name.upper()}"


def _is_service_link(variable: str, value: str) -> bool:
    by_value = variable.endswith("_PORT") and _SERVICE_LINK_VALUE.fullmatch(value) is not None
    return by_value or _SERVICE_LINK.fullmatch(variable) is not None


def _split(wanted: Any, raw: str) -> Any:
    """A list in the environment is comma-separated; an empty variable is an empty list or an unset optional."""
    for choice in _choices(wanted):
        if get_origin(choice) in {list, tuple, frozenset, set} or choice in {list, tuple}:
            return [part.strip() for part in raw.split(",") if part.strip()]
    return None if raw == "" and type(None) in _choices(wanted) else raw


def _choices(wanted: Any) -> tuple[Any, ...]:
    bare = get_args(wanted)[0] if hasattr(wanted, "__metadata__") else wanted
    members = get_args(bare)
    is_union = type(None) in members or get_origin(bare) is type(int | str)
    return tuple(choice for member in members for choice in _choices(member)) if is_union else (bare,)


def _convert(field: msgspec.structs.FieldInfo, raw: Any, *, where: str, strict: bool) -> Any:
    try:
        value = msgspec.convert(raw, field.type, strict=strict, dec_hook=_decode)
        if isinstance(value, float) and math.isnan(value):  # no rule would hold it
            raise ValueError("Expected a number")
    except (msgspec.ValidationError, ValueError) as error:
        hidden = re.search(r"secret|token|password|credential", field.name) or holds_credentials(str(raw))
        shown = "" if hidden else f" is {shorten(repr(raw) if isinstance(raw, str) else toml_text_of(raw), SHOWN_MAX)}"
        literals = [
            each for choice in _choices(field.type) if get_origin(choice) is Literal for each in get_args(choice)
        ]
        right = f" (one of {', '.join(map(str, literals))})" if literals else ""
        raise SettingsError(f"{where}{shown}: {shorten(str(error).replace('`', ''), SHOWN_MAX)}{right}") from error
    return value


def _decode(wanted: type, raw: Any) -> Any:
    if wanted is Path and raw == "":
        raise ValueError("Expected a path")  # it would be the folder in which the service happens to be started
    if wanted is Path and isinstance(raw, str):
        return Path(raw)
    raise ValueError(f"Expected {wanted.__name__}, got {type(raw).__name__}")


def _nearest(name: str, choices: Iterable[str]) -> str:
    found = nearest(name[:NAME_MAX], tuple(choices))
    return f" (did you mean {found}?)" if found else ""
