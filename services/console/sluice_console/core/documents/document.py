"""What every printed document is."""

import msgspec

VERSION = 1


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """What every printed document is."""
