"""What `sluice consolidate` prints of the allocator's answer."""

from collections.abc import Iterator

from sluice.contracts.pb import allocator_pb2 as pb
from sluice_console.core.documents import ConsolidationDocument, EmptiedNodeDocument
from sluice_console.core.simulate.answers import moved_pods


def document_of(answer: pb.ConsolidateResponse) -> ConsolidationDocument:
    """The answer as a document."""
    nodes = (EmptiedNodeDocument(node=each.node, moves=moved_pods(each.moves)) for each in answer.nodes)
    return ConsolidationDocument(nodes=tuple(nodes))


def lines_of(document: ConsolidationDocument) -> Iterator[str]:
    """The same for people: a line per node, and one per pod that would start again elsewhere."""
    if not document.nodes:
        yield "no node would be empty: each has a pod that is not movable or has no place elsewhere"
    for each in document.nodes:
        count = len(each.moves)
        yield f"{each.node}: " + (f"empty after {count} {'move' if count == 1 else 'moves'}" if count else "idle")
        for move in each.moves:
            yield f"  {move.namespace}/{move.name} -> {move.to_node}"
