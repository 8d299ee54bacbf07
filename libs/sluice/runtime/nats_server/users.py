"""The users of a broker, their rights and accounts, as text of its configuration.

A user may name any subject for a reply, and the broker does not check that: a JetStream reply to `sluice.ledger...` is
stored in BOOK (tried on nats-server 2.15.1). So agents are in an account without streams, where replies stay, which
imports what agents may write. With a `Callout` the broker asks a service about every other user."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from sluice.contracts.bus.nats_permissions import AGENTS_ACCOUNT, SERVICES_ACCOUNT, Permissions, of_any_agent

CALLOUT_ACCOUNT = "AUTH"
"""The account of the service that answers the broker's questions about users, and of nothing else."""
CALLOUT_TIMEOUT_S = 10
"""Of a login. A restarted broker asks about all users at once: of 1,000, none failed in 10 s (on two cores)."""
PULLED = "$JS.API.CONSUMER.MSG.NEXT."
"""Requests with more than one reply: messages, and heartbeats while there are none."""
PULL_SILENCE = "30s"
"""An import drops a pull after this long without a reply. Open pulls are silent for 6 s at most."""
DENY_ALL = "sluice.none"
"""A subject without listeners and writers."""
API_INFO = "$JS.API.INFO"
"""Without importing it, an account without JetStream gets the whole API imported by the broker: each request would have
two replies, the first one an error (nats-server, `enableJetStreamInfoServiceImportOnly`; tried)."""


@dataclass(frozen=True, slots=True)
class CertifiedUser:
    """A user known by the DNS name in its certificate (TLS with `verify_and_map`), without a secret."""

    rights: Permissions
    name: str

    def who(self) -> str:
        return f'user: "{self.name}"'


@dataclass(frozen=True, slots=True)
class Callout:
    """Public keys of the service that answers for users: each is an nkey, or `$NAME` of a variable."""

    issuer: str
    """Signs the answers (an account's nkey)."""
    user: str
    """The service itself (a user's nkey)."""
    sealed_for: str
    """Opens the questions, which hold tokens (a curve nkey)."""
    timeout_s: float = CALLOUT_TIMEOUT_S


def authorization(users: Sequence[CertifiedUser], callout: Callout | None = None) -> list[str]:
    """Lines that give users their rights, and others what the `callout` says."""
    if not users and callout is None:
        return []
    lines = ["accounts {", f"  {SERVICES_ACCOUNT} {{", "    jetstream: enabled"]
    lines += _users(users, SERVICES_ACCOUNT)
    lines += ["    exports: [", *(_export(subject) for subject in (*of_any_agent(), DENY_ALL)), "    ]", "  }"]
    lines += [f"  {AGENTS_ACCOUNT} {{", *_users(users, AGENTS_ACCOUNT)]
    lines += ["    imports: [", *(_import(subject) for subject in of_any_agent()), _import(DENY_ALL, API_INFO)]
    lines += ["    ]", "  }"]
    if callout is not None:
        lines += [f"  {CALLOUT_ACCOUNT} {{ users: [{{ nkey: {callout.user} }}] }}"]
    return [*lines, "}", *([] if callout is None else _callout(users, callout))]


def _callout(users: Sequence[CertifiedUser], callout: Callout) -> list[str]:
    known = ", ".join([callout.user, *(f'"{user.rights.user}"' for user in users)])
    return [
        "authorization {",
        f"  timeout: {callout.timeout_s:g}",
        "  auth_callout {",
        f"    issuer: {callout.issuer}",
        f"    account: {CALLOUT_ACCOUNT}",
        f"    auth_users: [{known}]",
        f"    xkey: {callout.sealed_for}",
        "  }",
        "}",
    ]


def _users(users: Sequence[CertifiedUser], account: str) -> list[str]:
    return ["    users: [", *(_user(user) for user in users if user.rights.account == account), "    ]"]


def _user(user: CertifiedUser) -> str:
    allow = {"publish": {"allow": list(user.rights.publish)}, "subscribe": {"allow": list(user.rights.subscribe)}}
    return f"      {{ {user.who()}, permissions: {json.dumps(allow, separators=(',', ':'))} }}"


def _export(subject: str) -> str:
    """For any account. Imports are set in this same text, and no user can import anything."""
    answers = f', response_type: stream, threshold: "{PULL_SILENCE}"' if subject.startswith(PULLED) else ""
    return f'      {{ service: "{subject}"{answers} }}'


def _import(subject: str, known_as: str = "") -> str:
    to = f', to: "{known_as}"' if known_as else ""
    return f'      {{ service: {{ account: {SERVICES_ACCOUNT}, subject: "{subject}" }}{to} }}'
