"""
Who a broker lets in, as the text of its configuration: users, what each may do, and the account that each is in.

A user may name any subject for an answer, and the broker asks nobody whether the user may write there: an answer of
JetStream's that goes to `sluice.ledger...` is stored in BOOK, one that goes to `$JS.API.STREAM.PURGE.BOOK` empties it
(tried on nats-server 2.15.1). So whoever is believed about one node alone is in an account of its own, with the
subjects that it may write imported one by one: answers come back to that account, and nothing else is in it. It must
add no right, and hold none that `sluice.contracts.bus.nats_permissions` does not have.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from sluice.contracts.bus.nats_permissions import Permissions, of_any_agent

ACCOUNT = "SLUICE"
"""Where the streams are, and all users that are in no account of their own."""
PULLED = "$JS.API.CONSUMER.MSG.NEXT."
"""What is answered more than once: by messages, and by heartbeats while there are none."""
PULL_SILENCE = "30s"
"""Without an answer for so long an import forgets a pull. They are silent for a second at most, while they last."""
DENY_ALL = "sluice.nobody"
"""A subject where nobody listens and nobody may write."""
API_INFO = "$JS.API.INFO"
"""
Whoever does not import it has the whole API imported by the broker, for an account without JetStream: each question
would have two answers, and the first one is an error (nats-server, `enableJetStreamInfoServiceImportOnly`; tried).
"""

_PASSWORD = re.compile(r"[A-Za-z0-9_-]{8,}")


@dataclass(frozen=True, slots=True)
class User:
    """A user of the bus: what it may do, and its password (letters, digits, `-` and `_`, 8 or more)."""

    rights: Permissions
    password: str = field(repr=False)

    def who(self) -> str:
        """How it is known. Raises ValueError for another password than that."""
        if not _PASSWORD.fullmatch(self.password):
            raise ValueError(f"the password of {self.rights.user} must be 8 or more letters, digits, '-' and '_'")
        return f'user: "{self.rights.user}", password: "{self.password}"'


@dataclass(frozen=True, slots=True)
class CertifiedUser:
    """A user that is known by the DNS name in its certificate (TLS with `verify_and_map`): nothing to keep secret."""

    rights: Permissions
    name: str

    def who(self) -> str:
        """How it is known."""
        return f'user: "{self.name}"'


def authorization(users: Sequence[User | CertifiedUser]) -> list[str]:
    """
    The lines of a configuration that let these users do what they have the right to, and nothing else.

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
            lines += [_import(subject) for subject in user.rights.publish]
            lines += [_import(DENY_ALL, API_INFO), "    ]", "  }"]
    return [*lines, "}"]


def _user(user: User | CertifiedUser) -> str:
    allow = {
        "publish": {"allow": list(user.rights.publish)},
        "subscribe": {"allow": list(user.rights.subscribe)},
    }
    return f"      {{ {user.who()}, permissions: {json.dumps(allow, separators=(',', ':'))} }}"


def _export(subject: str) -> str:
    """For any account. Which imports what of it is in this same text, and no user can import anything."""
    answers = f', response_type: stream, threshold: "{PULL_SILENCE}"' if subject.startswith(PULLED) else ""
    return f'      {{ service: "{subject}"{answers} }}'


def _import(subject: str, known_as: str = "") -> str:
    """As short as can be: in Kubernetes all nodes' lines are in one Secret, which holds 1 MiB."""
    to = f',to:"{known_as}"' if known_as else ""
    return f'{{service:{{account:{ACCOUNT},subject:"{subject}"}}{to}}}'
