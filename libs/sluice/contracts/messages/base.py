"""What every message is."""

import msgspec


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True, tag_field="type"):
    """A frozen struct whose `type` on the wire is its class name."""
