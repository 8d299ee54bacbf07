"""
One service as its next version would be: `python tests/ha/next_version.py sluice_allocator`.

It runs the service's own code, and every message that it writes has fields that are unknown yet: in the envelope, in
the message, and in what it is made of. So two versions are on the bus at once (docs/evolution.md).
"""

import json
import runpy
import sys
from typing import Any

from sluice.contracts.messages import Envelope
from sluice.runtime.nats import wire_format

MAPS = frozenset({"creatable", "links", "resources", "labels", "node_selector"})
"""Fields whose keys are names of things, and no fields."""


def grown(value: Any, *, is_struct: bool = True) -> Any:
    """A message with a field more in every struct."""
    if isinstance(value, list):
        return [grown(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    inner = {key: grown(inside, is_struct=key not in MAPS) for key, inside in value.items()}
    return inner | {"of_the_next_version": {"x": [1]}} if is_struct else inner


def main() -> None:
    encode = wire_format.encode

    def encode_grown(envelope: Envelope) -> bytes:
        return json.dumps(grown(json.loads(encode(envelope)))).encode()

    wire_format.encode = encode_grown  # the one place where services make bytes of what they write
    runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
