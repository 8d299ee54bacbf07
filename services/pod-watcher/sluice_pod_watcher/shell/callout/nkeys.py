"""Keys as NATS writes them: Ed25519 for signatures, Curve25519 for sealed messages. An nkey is base32 of a prefix, 32
bytes and a CRC-16 (github.com/nats-io/nkeys). The cryptography is PyNaCl's; the package `nkeys` has no wheel, cannot
open sealed messages, and adds only this encoding to PyNaCl."""

import base64
import binascii
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Self

from nacl.exceptions import CryptoError
from nacl.public import Box, PrivateKey, PublicKey
from nacl.signing import SigningKey
from nacl.utils import random

_SEED = 18 << 3
_SEALED = b"xkv1"
_RAW_BYTES = 32


class KeyKind(IntEnum):
    """The prefix byte of a public key, which makes its first letter."""

    ACCOUNT = 0
    USER = 20 << 3
    CURVE = 23 << 3


class NotAKeyError(ValueError):
    """Not an nkey of the expected kind. The text does not repeat it."""


@dataclass(frozen=True, slots=True, repr=False)
class NKey:
    """A key with its secret part."""

    kind: KeyKind
    raw: bytes

    @classmethod
    def make(cls, kind: KeyKind) -> Self:
        return cls(kind, random(_RAW_BYTES))

    @classmethod
    def from_seed(cls, seed: str, kind: KeyKind) -> Self:
        """Raises NotAKeyError."""
        data = _decoded(seed)
        if len(data) != _RAW_BYTES + 2 or data[:2] != bytes((_SEED | kind >> 5, (kind & 31) << 3)):
            raise NotAKeyError(f"this is no seed of a NATS key of kind {kind.name.lower()}")
        return cls(kind, data[2:])

    @property
    def seed(self) -> str:
        """The secret, as `nk` and `nsc` write it."""
        return _encoded(bytes((_SEED | self.kind >> 5, (self.kind & 31) << 3)) + self.raw)

    @property
    def public(self) -> str:
        if self.kind is KeyKind.CURVE:
            return _encoded(bytes((self.kind,)) + bytes(PrivateKey(self.raw).public_key))
        return _encoded(bytes((self.kind,)) + bytes(SigningKey(self.raw).verify_key))

    def sign(self, data: bytes) -> bytes:
        return bytes(SigningKey(self.raw).sign(data).signature)

    def open(self, sealed: bytes, sender: str) -> bytes:
        """What `sender`, a curve nkey, has sealed for this key. Raises NotAKeyError."""
        try:
            return Box(PrivateKey(self.raw), _curve_key(sender)).decrypt(sealed.removeprefix(_SEALED))
        except (CryptoError, ValueError) as error:
            raise NotAKeyError("this message is not sealed for our key") from error

    def seal(self, data: bytes, receiver: str) -> bytes:
        """A message that only `receiver`, a curve nkey, can open. Raises NotAKeyError."""
        return _SEALED + bytes(Box(PrivateKey(self.raw), _curve_key(receiver)).encrypt(data))


def _curve_key(text: str) -> PublicKey:
    data = _decoded(text)
    if len(data) != _RAW_BYTES + 1 or data[0] != KeyKind.CURVE:
        raise NotAKeyError("this is no public curve key of NATS")
    return PublicKey(data[1:])


def _encoded(data: bytes) -> str:
    return base64.b32encode(data + struct.pack("<H", binascii.crc_hqx(data, 0))).decode().rstrip("=")


def _decoded(text: str) -> bytes:
    try:
        data = base64.b32decode(text + "=" * (-len(text) % 8))
    except (binascii.Error, ValueError) as error:
        raise NotAKeyError("this is no base32") from error
    if len(data) < 2 or struct.pack("<H", binascii.crc_hqx(data[:-2], 0)) != data[-2:]:
        raise NotAKeyError("the checksum of this NATS key is wrong")
    return data[:-2]
