"""The broker's question about a user, and the signed answer (NATS ADR-26, auth callout). Both are JWTs with NATS's own
algorithm, `ed25519-nkey`. The question is not verified: only the broker can publish in that account."""

import base64
import binascii
import secrets
from dataclasses import dataclass, field
from typing import Any

import msgspec

from sluice.contracts.bus import codec, nats_permissions
from sluice_pod_watcher.shell.callout.nkeys import NKey

_HEADER = b'{"typ":"JWT","alg":"ed25519-nkey"}'
UNLIMITED = -1


class NotAQuestionError(ValueError):
    """This is no question of a broker. One sentence."""


class _Server(msgspec.Struct):
    id: str


class _ConnectOptions(msgspec.Struct):
    user: str = ""
    password: str = msgspec.field(default="", name="pass")


class _Asked(msgspec.Struct):
    server_id: _Server
    user_nkey: str
    connect_opts: _ConnectOptions


class _Question(msgspec.Struct):
    sub: str
    nats: _Asked


@dataclass(frozen=True, slots=True)
class Question:
    """Who wants to log in, where, and by which issuer's answer."""

    issuer: str
    server: str
    key: str  # the key that the broker made for this connection
    user: str
    token: str = field(repr=False)


def read_question(data: bytes) -> Question:
    """Raises NotAQuestionError."""
    try:
        asked = msgspec.json.decode(payload_of(data.decode("ascii")), type=_Question)
    except (*codec.NOT_READABLE, ValueError) as error:
        raise NotAQuestionError("this is no question of a broker about a user") from error
    options = asked.nats.connect_opts
    return Question(asked.sub, asked.nats.server_id.id, asked.nats.user_nkey, options.user, options.password)


def payload_of(token: str) -> bytes:
    """The claims of a JWT, unverified. Raises ValueError."""
    parts = token.split(".")
    if len(parts) != 3:
        raise ValueError("this is no JWT")
    try:
        return base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
    except binascii.Error as error:
        raise ValueError("this is no JWT") from error


def admitted(question: Question, rights: nats_permissions.Permissions, issuer: NKey, *, now: int, until: int) -> bytes:
    """The answer that lets the user in with these rights, until `until` (unix seconds, as `now`)."""
    user = {
        "type": "user",
        "version": 2,
        "pub": {"allow": rights.publish},
        "sub": {"allow": rights.subscribe},
        "subs": UNLIMITED,
        "data": UNLIMITED,
        "payload": UNLIMITED,
    }
    claims = {"sub": question.key, "aud": rights.account, "name": rights.user, "iat": now, "exp": until}
    return _answer(question, issuer, now, {"jwt": _signed(issuer, claims, user).decode()})


def refused(question: Question, why: str, issuer: NKey, *, now: int) -> bytes:
    """The answer that refuses the user; the broker logs `why`."""
    return _answer(question, issuer, now, {"error": why})


def _answer(question: Question, issuer: NKey, now: int, content: dict[str, str]) -> bytes:
    claims = {"sub": question.key, "aud": question.server, "iat": now}
    return _signed(issuer, claims, {"type": "authorization_response", "version": 2, **content})


def _signed(issuer: NKey, claims: dict[str, Any], nats: dict[str, Any]) -> bytes:
    body = msgspec.json.encode({"jti": secrets.token_hex(16), "iss": issuer.public, **claims, "nats": nats})
    text = _base64(_HEADER) + b"." + _base64(body)
    return text + b"." + _base64(issuer.sign(text))


def _base64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")
