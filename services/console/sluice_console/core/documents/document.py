"""The base of every printed document."""

import msgspec

VERSION = 1


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """The base of every printed document."""
