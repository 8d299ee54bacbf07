"""What every message is, and the bounds that a decoder holds its numbers to."""

from typing import Annotated

import msgspec

SLICES_MAX = 1024
"""Memory slices of one GPU: real ones have 8. A place beyond them would be counted in a number of so many bits."""

SpanStart = Annotated[int, msgspec.Meta(ge=0, lt=SLICES_MAX)]
"""The first memory slice of a place."""
SpanSize = Annotated[int, msgspec.Meta(ge=0, le=SLICES_MAX)]
"""How many memory slices, or compute slices."""


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True, tag_field="type"):
    """A frozen struct whose `type` on the wire is its class name."""
