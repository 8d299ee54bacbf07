"""Which nodes would be empty if movable pods started again elsewhere: for operators and scripts. Moves nothing."""

from dataclasses import dataclass

from sluice.contracts.ids import NodeName
from sluice_allocator.core.moves.defragment import Moved, asking_of_mover, moved_pods
from sluice_allocator.core.moves.state import MoveContext
from sluice_allocator.core.placement.defragment import plan_emptying

NODES_MAX = 64  # most nodes with slices looked at, those with the fewest first
MOVES_MAX = 8  # most pods moved off one node: each is a restart


@dataclass(frozen=True, slots=True)
class Emptied:
    """A node, and the pods to move off it; none where nothing is on it now."""

    node: NodeName
    moves: tuple[Moved, ...] = ()


def consolidate(ctx: MoveContext) -> list[Emptied]:
    """Nodes without a slice, then those that would have none, one after the other: no pod moves to either kind."""
    usable = [node for node in ctx.cluster.nodes.values() if node.gpus]
    emptied = [Emptied(node.name) for node in usable if not node.taken]
    crowded = sorted((node for node in usable if 0 < len(node.taken) <= MOVES_MAX), key=lambda node: len(node.taken))
    without, targets = {each.node: None for each in emptied}, dict[NodeName, None]()
    for node in crowded[:NODES_MAX]:
        if node.name in targets:
            continue
        moves = plan_emptying(
            ctx.cluster,
            node.name,
            (*without, *targets),
            shown=ctx.shown,
            may_move=lambda allocation: asking_of_mover(ctx, allocation),
        )
        if moves is not None:
            without[node.name] = None
            targets |= dict.fromkeys(move.to.node for move in moves)
            emptied.append(Emptied(node.name, tuple(moved_pods(ctx, moves))))
    return emptied
