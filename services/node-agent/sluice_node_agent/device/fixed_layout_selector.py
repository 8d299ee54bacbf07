"""
Selects the GPUs whose layout an administrator fixed, from an operator's setting.

Every node of a cluster can get the same setting: entries for other nodes are ignored. Pure.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from sluice.contracts.ids import GpuUuid, NodeName

ALL = "all"
_UUID = re.compile(r"GPU-[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_NODE = re.compile(rf"(?P<node>{_LABEL}(?:\.{_LABEL})*)(?::(?P<index>\d{{1,3}}))?")


@dataclass(frozen=True, slots=True)
class FixedLayoutSelector:
    """The selected GPUs of one node."""

    all: bool = False
    uuids: frozenset[str] = frozenset()
    indices: frozenset[int] = frozenset()

    def __contains__(self, gpu: tuple[GpuUuid, int]) -> bool:
        """Whether a GPU (its UUID and its index) is selected."""
        uuid, index = gpu
        return self.all or uuid in self.uuids or index in self.indices


def parse_selector(named: Iterable[str], node: NodeName) -> FixedLayoutSelector:
    """
    Parse a node's entries: `all`, a node (all of its GPUs), `<node>:<index>`, or a GPU's UUID.

    Raises ValueError for any other entry.
    """
    everywhere, uuids, indices = False, set[str](), set[int]()
    for name in named:
        found = _NODE.fullmatch(name)
        if name == ALL:
            everywhere = True
        elif _UUID.fullmatch(name):
            uuids.add(f"GPU-{name.removeprefix('GPU-').lower()}")  # as drivers print them
        elif found is None:
            raise ValueError(f"{name[:100]!r} is no GPU: say all, a node's name, <node>:<index>, or a UUID (GPU-...)")
        elif found["node"] == node:
            everywhere |= found["index"] is None
            indices.update([int(found["index"])] if found["index"] is not None else [])
    return FixedLayoutSelector(everywhere, frozenset(uuids), frozenset(indices))


def refusal(gpu: GpuUuid, doing: str) -> str:
    """The message for a refused change of a selected GPU."""
    return f"{gpu}: {doing} is refused: its layout is fixed by its administrator"
