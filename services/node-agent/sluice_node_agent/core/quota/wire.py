"""The messages between scheduler and client library: packets of 64 bytes, little-endian (docs/time-quota.md;
`native/quota` has them in C). Strict, since tenants write them: a packet is exactly one of ours or a `WireError`."""

import struct

import msgspec

MAGIC = 0x54514C53
VERSION = 1
PACKET_BYTES = 64

_HEAD = struct.Struct("<IHHQ")
_HELLO = struct.Struct("<III16sI")
_ASK = struct.Struct("<QQ")
_GIVE_BACK = struct.Struct("<QQ")
_QUOTA = struct.Struct("<QQIIQQQ")
_GRANT = struct.Struct("<QQQ")
_STOP = struct.Struct("<Q")
_REFUSED = struct.Struct("<I")

FAIL_CLOSED = 1

BAD_VERSION, NOT_A_TENANT, TOO_MANY, ENDING = 1, 2, 3, 4
"""Why a client is refused."""


class WireError(ValueError):
    """A packet that is not a message. `reason` is the REFUSED to answer with, 0 for none."""

    def __init__(self, message: str, reason: int = 0) -> None:
        super().__init__(message)
        self.reason = reason


class Hello(msgspec.Struct, frozen=True):
    """A process has loaded the library. Nothing in it decides its identity."""

    pid: int
    """As the process sees itself."""
    fails_closed: bool
    library_version: int
    """major << 16 | minor << 8 | patch"""
    device_uuid: bytes
    """16 bytes, or zeros while it is not known."""
    fail_opens: int = 0
    """How often it went on without a scheduler, since the last HELLO that told so."""


class Ask(msgspec.Struct, frozen=True):
    """A process wants to launch."""

    sequence: int
    wanted_us: int
    """0 for the usual length."""
    ahead_of: int
    """The token in use that ends soon; 0 for none."""


class GiveBack(msgspec.Struct, frozen=True):
    """The process has nothing on the device any more."""

    token: int
    used_us: int
    """As the client measured it; informational."""


class Quota(msgspec.Struct, frozen=True):
    """A tenant's size, as WELCOME or (after a change) CHANGED carries it."""

    window_us: int
    token_us: int
    request_ppm: int
    limit_ppm: int
    memory_bytes: int
    """0 for no limit here."""
    epoch: int
    """Differs after each start of the scheduler."""
    patience_us: int
    """A client waits at least so long before it goes on without a scheduler."""
    is_news: bool = False


class Grant(msgspec.Struct, frozen=True):
    """The place is booked, and the agent shall create the slice (LAW 2: the ledger entry is the command)."""

    token: int
    length_us: int
    in_answer_to: int
    """The sequence of the ASK."""


class Stop(msgspec.Struct, frozen=True):
    """A token ends now."""

    token: int


class Refused(msgspec.Struct, frozen=True):
    """The scheduler no longer serves this connection."""

    reason: int


FromClient = Hello | Ask | GiveBack
ToClient = Quota | Grant | Stop | Refused

_HELLO_KIND, _ASK_KIND, _GIVE_BACK_KIND = 1, 2, 3
_WELCOME_KIND, _GRANT_KIND, _CHANGED_KIND, _STOP_KIND, _REFUSED_KIND = 17, 18, 19, 20, 21
_BODIES = {_HELLO_KIND: _HELLO, _ASK_KIND: _ASK, _GIVE_BACK_KIND: _GIVE_BACK}
_FORMS = {Grant: (_GRANT_KIND, _GRANT), Stop: (_STOP_KIND, _STOP), Refused: (_REFUSED_KIND, _REFUSED)}


def read(packet: bytes) -> FromClient:
    """Decode a client's message. Raises WireError, which names the problem."""
    if len(packet) != PACKET_BYTES:
        raise WireError(f"a packet of {len(packet)} bytes; it must have {PACKET_BYTES}")
    magic, version, kind, sequence = _HEAD.unpack_from(packet)
    if magic != MAGIC:
        raise WireError(f"magic is {magic:#010x}; it must be {MAGIC:#010x}")
    if version != VERSION:
        raise WireError(f"version is {version}; it must be {VERSION}", BAD_VERSION)
    body = _BODIES.get(kind)
    if body is None:
        raise WireError(f"kind is {kind}; a client says 1 (HELLO), 2 (ASK) or 3 (GIVE_BACK)")
    if any(packet[_HEAD.size + body.size :]):
        raise WireError(f"a packet of kind {kind} has something after its {body.size} bytes; it must be zeros")
    values = body.unpack_from(packet, _HEAD.size)
    if kind == _ASK_KIND:
        return Ask(sequence, *values)
    if kind == _GIVE_BACK_KIND:
        return GiveBack(*values)
    pid, flags, library_version, uuid, fail_opens = values
    if flags & ~FAIL_CLOSED:
        raise WireError(f"flags are {flags:#x}; only bit 0 (fail closed) has a meaning")
    return Hello(pid, bool(flags & FAIL_CLOSED), library_version, uuid, fail_opens)


def written(message: ToClient, sequence: int) -> bytes:
    values = msgspec.structs.astuple(message)
    if isinstance(message, Quota):
        kind, form, values = _CHANGED_KIND if message.is_news else _WELCOME_KIND, _QUOTA, values[:-1]
    else:
        kind, form = _FORMS[type(message)]
    return (_HEAD.pack(MAGIC, VERSION, kind, sequence) + form.pack(*values)).ljust(PACKET_BYTES, b"\0")
