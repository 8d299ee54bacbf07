"""The base of every message, and the bounds that decoders check."""

from typing import Annotated

import msgspec

SLICES_MAX = 1024
"""Memory slices of one GPU: real ones have 8. Bounds the bit masks that count places."""

SpanStart = Annotated[int, msgspec.Meta(ge=0, lt=SLICES_MAX)]
"""The first memory slice of a place."""
SpanSize = Annotated[int, msgspec.Meta(ge=0, le=SLICES_MAX)]
"""A number of memory slices or compute slices."""


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True, tag_field="type"):
    """A frozen struct whose `type` on the wire is its class name."""
