"""
The users of a broker, their rights and accounts, as text of its configuration.

A user may name any subject for a reply, and the broker does not check whether the user may write there: a JetStream
reply to `sluice.ledger...` is stored in BOOK, one to `$JS.API.STREAM.PURGE.BOOK` empties it (tried on nats-server
2.15.1). So each user that is trusted for one node only has its own account, with its writable subjects imported one by
one: replies stay in that account. All rights come from `sluice.contracts.bus.nats_permissions`.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from sluice.contracts.bus.nats_permissions import Permissions, of_any_agent
from sluice.contracts.bus.subjects import HISTORY_PREFIX

ACCOUNT = "SLUICE"
"""The account of the streams, and of all users without an account of their own."""
PULLED = "$JS.API.CONSUMER.MSG.NEXT."
"""Requests with more than one reply: messages, and heartbeats while there are none."""
PULL_SILENCE = "30s"
"""An import drops a pull after this long without a reply. Open pulls are silent for a second at most."""
DENY_ALL = "sluice.none"
"""A subject without listeners and writers."""
API_INFO = "$JS.API.INFO"
"""
Without importing it, an account without JetStream gets the whole API imported by the broker: each request would have
two replies, the first one an error (nats-server, `enableJetStreamInfoServiceImportOnly`; tried).
"""

_PASSWORD = re.compile(r"[A-Za-z0-9_-]{8,}")


@dataclass(frozen=True, slots=True)
class User:
    """A user of the bus: its rights, and its password (letters, digits, `-` and `_`, 8 or more)."""

    rights: Permissions
    password: str = field(repr=False)

    def who(self) -> str:
        """Its identity in the configuration. Raises ValueError for an invalid password."""
        if not _PASSWORD.fullmatch(self.password):
            raise ValueError(f"the password of {self.rights.user} must be 8 or more letters, digits, '-' and '_'")
        return f'user: "{self.rights.user}", password: "{self.password}"'


@dataclass(frozen=True, slots=True)
class CertifiedUser:
    """A user known by the DNS name in its certificate (TLS with `verify_and_map`), without a secret."""

    rights: Permissions
    name: str

    def who(self) -> str:
        """Its identity in the configuration."""
        return f'user: "{self.name}"'


def authorization(users: Sequence[User | CertifiedUser]) -> list[str]:
    """
    The configuration lines that give these users exactly their rights.

    Raises ValueError for a password that would need quoting.
    """
    if not users:
        return []
    lines = ["accounts {", f"  {ACCOUNT} {{", "    jetstream: enabled", "    users: ["]
    lines += [_user(user) for user in users if not user.rights.alone]
    lines += ["    ]", "    exports: ["]
    lines += [_export(subject) for subject in (*of_any_agent(), DENY_ALL)]
    lines += ["    ]", "  }"]
    for user in users:
        if user.rights.alone:
            lines += [f'  "{user.rights.user}" {{', "    users: [", _user(user), "    ]", "    imports: ["]
            lines += [_import(each) for each in user.rights.publish if not each.startswith(HISTORY_PREFIX)]
            lines += [_import(DENY_ALL, API_INFO), "    ]", "  }"]
    return [*lines, "}"]


def _user(user: User | CertifiedUser) -> str:
    allow = {
        "publish": {"allow": list(user.rights.publish)},
        "subscribe": {"allow": list(user.rights.subscribe)},
    }
    return f"      {{ {user.who()}, permissions: {json.dumps(allow, separators=(',', ':'))} }}"


def _export(subject: str) -> str:
    """For any account. Imports are set in this same text, and no user can import anything."""
    answers = f', response_type: stream, threshold: "{PULL_SILENCE}"' if subject.startswith(PULLED) else ""
    return f'      {{ service: "{subject}"{answers} }}'


def _import(subject: str, known_as: str = "") -> str:
    """As short as possible: in Kubernetes all nodes' lines are in one Secret, which holds 1 MiB."""
    to = f',to:"{known_as}"' if known_as else ""
    return f'{{service:{{account:{ACCOUNT},subject:"{subject}"}}{to}}}'
