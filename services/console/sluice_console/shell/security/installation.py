"""
The credentials of an installation without Kubernetes, in a folder: authorities, the broker's files, and each member's
files.

The broker knows users by their certificates, so its list of users holds nothing secret, and adding or removing a node
changes that list alone. Three authorities, for brokers, users and gRPC, because no certificate of one kind may pass for
another. In a cluster the callout does all that.
"""

import datetime as dt
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from sluice.contracts.bus.store_sizes import STORE_BYTES_MAX
from sluice.contracts.bus.streams import Role
from sluice.contracts.ids import NodeName
from sluice.runtime.nats_server.server_config import PAYLOAD_BYTES_MAX
from sluice.runtime.nats_server.users import CertifiedUser, authorization
from sluice.runtime.tls.certificate_authority import (
    AS_CLIENT,
    AS_SERVER,
    USAGES,
    CredentialsError,
    KeyPair,
    check_authority,
    kept_pair,
    names_of,
    new_authority,
)
from sluice_console.core.credentials import BUS, BUS_CA, ENVIRONMENT, NODES, RPC, RPC_CA, CredentialHolder, members
from sluice_console.shell.security.broker_address import check_at, check_hosts, port_of
from sluice_console.shell.security.key_folder import KeyFolder

AUTHORITIES, BROKER = "authorities", "broker"
KINDS = {"bus": "Sluice bus", "users": "Sluice bus users", "rpc": "Sluice gRPC"}
TLS, USERS_CA, USERS, CONFIG = "tls.pem", "users-ca.crt", "users.conf", "nats-server.conf"
UNDER_WAY = "rotation"
"""The rotation step in progress: present until all of that step is written."""
FOLDERS = (AUTHORITIES, BROKER, NODES, *(member.folder for member in members(())))
"""Everything that is created."""
LISTEN = "127.0.0.1:4222"
_SAYS_LISTEN, _SAYS_AT = r'^\s*listen\s*[:=]\s*"([^"]+)"', rf'^\s*cert_file\s*[:=]\s*"(.*)/{re.escape(TLS)}"'

ROTATION = (
    "all parts trust the new authorities besides the old ones",
    "all parts use certificates of the new authorities",
    "the old authorities are no longer trusted",
)


@dataclass(frozen=True, slots=True)
class InstallationOptions:
    """Settings in the files: where the broker listens, and where the files are installed.

    None keeps the values of `init`, and the defaults without."""

    listen: str | None = None
    at: str | None = None
    """The folder of a member's files on its machine; the folder they are created in if empty."""

    @property
    def is_said(self) -> bool:
        """Whether anything was given."""
        return self.listen is not None or self.at is not None

    def check(self) -> None:
        """Raises CredentialsError for invalid values."""
        if self.listen is not None:
            port_of(self.listen)
        if self.at is not None:
            check_at(self.at)


@dataclass(frozen=True, slots=True)
class Installation:
    """One folder. Every method keeps what is still valid."""

    folder: KeyFolder
    now: dt.datetime

    def create(
        self,
        hosts: Sequence[str],
        nodes: Sequence[str],
        where: InstallationOptions,
        *,
        given: KeyPair | None,
        force: bool,
    ) -> None:
        """Create everything. `hosts`: names of the broker.

        Raises CredentialsError; for invalid arguments before anything is removed."""
        check_hosts(hosts)
        where.check()
        listen, at = LISTEN if where.listen is None else where.listen, where.at or ""
        asked = _members(nodes)
        if given is not None:
            check_authority(given, self.now)
        self.folder.create(replace=FOLDERS if force else ())
        for kind, name in KINDS.items():
            pair = given or new_authority(name, self.now)
            self.folder.write(f"{AUTHORITIES}/{kind}.crt", pair.certificate)
            self.folder.write(f"{AUTHORITIES}/{kind}.key", pair.key)
        self._lay(asked, tuple(hosts), InstallationOptions(listen, at))
        self.folder.write(f"{BROKER}/{CONFIG}", _config(listen, self._at(BROKER, at)))

    def add(self, nodes: Sequence[str], where: InstallationOptions) -> None:
        """Add nodes; existing ones keep their files, except for settings given in `where`.

        Raises CredentialsError."""
        where.check()
        asked, hosts, whole = _members([*self.nodes(), *nodes]), self._hosts(), InstallationOptions(*self._whole(where))
        self._lay(asked, hosts, whole, rewritten=nodes if where.is_said else ())

    def forget(self, nodes: Sequence[str]) -> None:
        """Remove nodes: the broker rejects their agents after its reload. Raises CredentialsError."""
        there = self.nodes()
        missing = [node for node in nodes if node not in there]
        if missing:
            raise CredentialsError(f"there is no node {', '.join(missing)}; there are: {', '.join(there) or 'none'}")
        hosts = self._hosts()
        for node in nodes:
            self.folder.remove(f"{NODES}/{node}")
        self._lay(_members(self.nodes()), hosts, InstallationOptions())

    def renew(self, *, everything: bool) -> None:
        """Renew certificates in their last 30 days, or all. Raises CredentialsError."""
        self._lay(_members(self.nodes()), self._hosts(), InstallationOptions(), renew=everything)

    def rotate(self) -> int:
        """Take one of the three steps to new authorities; returns which (1 to 3). Raises CredentialsError."""
        hosts, asked = self._hosts(), _members(self.nodes())
        step = self._step()
        self.folder.write(f"{AUTHORITIES}/{UNDER_WAY}", str(step))  # an interrupted step is repeated from its start
        if step == 1:
            self._make_next()
        elif step == 2:
            self._put_next_first()
        else:
            for kind in KINDS:
                self.folder.remove(f"{AUTHORITIES}/previous-{kind}.crt")
        self._lay(asked, hosts, InstallationOptions())
        self.folder.remove(f"{AUTHORITIES}/{UNDER_WAY}")
        return step

    def _step(self) -> int:
        """The step to take: the interrupted one, or the next one."""
        under_way = self.folder.read(f"{AUTHORITIES}/{UNDER_WAY}")
        if under_way in {b"1", b"2", b"3"}:
            return int(under_way)
        if self.folder.read(f"{AUTHORITIES}/next-bus.crt") is not None:
            return 2
        return 3 if self.folder.read(f"{AUTHORITIES}/previous-bus.crt") is not None else 1

    def _make_next(self) -> None:
        for kind, name in KINDS.items():
            if self.folder.read(f"{AUTHORITIES}/next-{kind}.crt") is None:
                pair = new_authority(name, self.now)
                self.folder.write(f"{AUTHORITIES}/next-{kind}.key", pair.key)
                self.folder.write(f"{AUTHORITIES}/next-{kind}.crt", pair.certificate)

    def _put_next_first(self) -> None:
        for kind in KINDS:
            if self.folder.read(f"{AUTHORITIES}/next-{kind}.crt") is None:
                continue  # done before the interruption
            old, new = self._authority(kind), self._authority(f"next-{kind}")
            if self.folder.read(f"{AUTHORITIES}/previous-{kind}.crt") is None:
                self.folder.write(f"{AUTHORITIES}/previous-{kind}.crt", old.certificate)
            self.folder.write(f"{AUTHORITIES}/{kind}.crt", new.certificate)
            self.folder.write(f"{AUTHORITIES}/{kind}.key", new.key)
        for kind in KINDS:
            self.folder.remove(f"{AUTHORITIES}/next-{kind}.crt")
            self.folder.remove(f"{AUTHORITIES}/next-{kind}.key")

    def nodes(self) -> list[str]:
        """Nodes that have credentials."""
        return self.folder.folders(NODES)

    # -- laying files ---------------------------------------------------------------------------------------------

    def _lay(
        self,
        asked: Sequence[CredentialHolder],
        hosts: Sequence[str],
        where: InstallationOptions,
        *,
        renew: bool = False,
        rewritten: Collection[str] = (),
    ) -> None:
        """`rewritten` are nodes whose existing settings are rewritten."""
        bus, users, rpc = (self._authority(kind) for kind in KINDS)
        self._keep(f"{BROKER}/{TLS}", bus, hosts, (AS_SERVER, AS_CLIENT), renew=renew)
        self.folder.write(f"{BROKER}/{USERS_CA}", self._bundle("users"))
        known = [CertifiedUser(member.rights, member.bus_name) for member in asked if member.calls_as is None]
        self.folder.write(f"{BROKER}/{USERS}", "\n".join(authorization(known)) + "\n")
        for member in asked:
            self._keep(f"{member.folder}/{BUS}", users, (member.bus_name,), (AS_CLIENT,), renew=renew)
            self.folder.write(f"{member.folder}/{BUS_CA}", self._bundle("bus"))
            if member.rpc_name:
                usages = USAGES[member.caller] if member.caller is not None else (AS_SERVER,)
                self._keep(f"{member.folder}/{RPC}", rpc, (member.rpc_name,), usages, renew=renew)
                self.folder.write(f"{member.folder}/{RPC_CA}", self._bundle("rpc"))
            settings = f"{member.folder}/{ENVIRONMENT}"
            if member.node in rewritten or self.folder.read(settings) is None:
                self.folder.write(settings, self._environment(member, hosts[0], where))

    def _environment(self, member: CredentialHolder, host: str, where: InstallationOptions) -> str:
        listen, at = self._whole(where)
        url = f"tls://{f'[{host}]' if ':' in host else host}:{port_of(listen)}"
        return member.environment(url, self._at(member.folder, at))

    def _whole(self, where: InstallationOptions) -> tuple[str, str]:
        """The values of `create` from the broker's configuration, where none are given. Raises CredentialsError."""
        if where.listen is not None and where.at is not None:
            return where.listen, where.at
        config = (self.folder.read(f"{BROKER}/{CONFIG}") or b"").decode(errors="replace")
        listen, lies = (re.search(said, config, re.MULTILINE) for said in (_SAYS_LISTEN, _SAYS_AT))
        if listen is None or lies is None:
            raise CredentialsError(
                f"{self.folder.root / BROKER / CONFIG} does not say where the broker listens and where files lie, as "
                "`sluice security init` wrote it; give both: sluice security add-node --listen HOST:PORT --at FOLDER"
            )
        at = lies[1]
        everybodys = f"={at}/{BUS}\n".encode() in (self.folder.read(f"{Role.ALLOCATOR.value}/{ENVIRONMENT}") or b"")
        if PurePosixPath(at).name == BROKER and not everybodys:
            at = ""  # not given: each one's files are in its own folder
        return where.listen or listen[1], at if where.at is None else where.at

    def _keep(
        self, name: str, authority: KeyPair, names: Sequence[str], usages: Sequence[object], *, renew: bool
    ) -> None:
        """A certificate and its key in one file: both change at once."""
        old = self.folder.read(name)
        kept = None if old is None or renew else KeyPair(old, old)
        made = kept_pair(kept, authority, names, usages, self.now)  # type: ignore[arg-type]  # object identifiers
        if made is not kept:
            self.folder.write(name, made.certificate + made.key)

    def _authority(self, kind: str) -> KeyPair:
        certificate, key = (self.folder.read(f"{AUTHORITIES}/{kind}.{end}") for end in ("crt", "key"))
        if certificate is None or key is None:
            raise CredentialsError(
                f"{self.folder.root / AUTHORITIES} holds no authority {kind!r}: is this a folder of `sluice security "
                "init`, with its authorities?"
            )
        return KeyPair(certificate, key)

    def _bundle(self, kind: str) -> bytes:
        """The trusted certificates: the authority, and during a rotation the other one, too."""
        found = [self.folder.read(f"{AUTHORITIES}/{which}{kind}.crt") for which in ("", "next-", "previous-")]
        return b"".join(each for each in found if each is not None)

    def _hosts(self) -> tuple[str, ...]:
        shown = self.folder.read(f"{BROKER}/{TLS}")
        if shown is None:
            raise CredentialsError(f"{self.folder.root}: there is no {BROKER}/{TLS}; `sluice security init` makes it")
        return names_of(shown)

    def _at(self, name: str, at: str) -> str:
        return at or str((self.folder.root / name).resolve())


def _members(nodes: Sequence[str]) -> list[CredentialHolder]:
    try:
        return members([NodeName(node) for node in nodes])
    except ValueError as error:
        raise CredentialsError(f"--node: {error}") from error


def _config(listen: str, at: str) -> str:
    return f"""\
# The broker of Sluice. Users and what each may do are in users.conf: no certificate that names one of them, no entry.
# After a change of these files: nats-server --signal reload=PID
listen: "{listen}"

# A message is at most this long; the services refuse to make longer ones.
max_payload: {PAYLOAD_BYTES_MAX}

tls {{
    cert_file: "{at}/{TLS}"
    key_file: "{at}/{TLS}"
    ca_file: "{at}/{USERS_CA}"
    verify_and_map: true
    timeout: 5
}}

jetstream {{
    store_dir: "nats-data"
    max_file_store: {STORE_BYTES_MAX}
    # A decision that was acknowledged must survive a crash. The default syncs every two minutes.
    sync_interval: always
    # Each node's agent has a consumer; the broker's default is 1,000 of a stream.
    limits {{ default_max_consumers: -1 }}
}}

include "{USERS}"
"""


def given_authority(certificate: Path | None, key: Path | None) -> KeyPair | None:
    """A given authority. Raises CredentialsError."""
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise CredentialsError("--authority and --authority-key: both, or none")
    try:
        return KeyPair(certificate.read_bytes(), key.read_bytes())
    except OSError as error:
        raise CredentialsError(f"{error.filename}: {error.strerror or error}") from error
