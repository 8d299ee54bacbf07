"""
`sluice node remove`: declares a node gone for good. Needs the operator's rights on the bus.

It publishes one guarded message: if the agent has published meanwhile, nothing is written. The allocator does the rest
(docs/adr/0012); this waits for the result.
"""

import sys

from sluice.contracts.bus import subjects
from sluice.contracts.bus.subjects import SubjectError
from sluice.contracts.ids import NodeName, OperationId, RunId
from sluice.contracts.messages import NodeRemoved
from sluice_console.core.fleet.fleet_state import FleetState
from sluice_console.core.operate.node_removal import NotRemovable, is_given_up, removal_of
from sluice_console.core.output.sanitize import sanitize
from sluice_console.shell.cli_options import answered
from sluice_console.shell.live.connect import connected
from sluice_console.shell.live.live_fleet import LiveFleet, NotAnsweringError, following, read_fleet_state
from sluice_console.shell.operate.guarded_write import last_message, publish_if_unchanged

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_NOT_FOUND = 4
CLOSED_WITHIN_S = 60.0
"""An allocator gives the node's agent half a minute to publish."""
KEPT_S = 4 * 3600
"""How long the message stays on the bus, like all final messages."""
CAUSE = "an operator removed it"


async def remove_node(url: str, node: str, *, yes: bool, asked: bool, run: RunId) -> int:
    """Declare a node gone. Without `yes` it asks for confirmation on a terminal (`asked`).

    Raises BusError, and NotAnsweringError if the bus has no values."""
    try:
        address = subjects.node(NodeName(node))
    except SubjectError as error:
        sys.stderr.write(f"sluice node remove: {error}\n")
        return EXIT_USAGE
    async with connected(url) as bus:
        before = await last_message(bus, address)  # read first: it guards what follows
        found = removal_of(await read_fleet_state(bus), node)
    if isinstance(found, NotRemovable):
        sys.stderr.write(f"sluice node remove: {sanitize(found.why)}\n")
        return EXIT_FAILED if found.is_known else EXIT_NOT_FOUND
    sys.stdout.write("\n".join(map(sanitize, found.lines())) + "\n")
    if not yes and not asked:
        sys.stderr.write("sluice node remove: no terminal to confirm on, and nothing was done; use --yes\n")
        return EXIT_USAGE
    sys.stdout.flush()  # before the question, which is on standard error
    if not yes and not _person_agrees(node):  # no connection is open meanwhile: the server ends a silent one
        sys.stderr.write("sluice node remove: nothing was done\n")
        return EXIT_FAILED
    word = NodeRemoved(node=NodeName(node), cause=CAUSE)
    async with connected(url) as bus, following(bus) as live:
        if not await publish_if_unchanged(bus, address, before, word, operation=OperationId(f"{run}-0"), ttl_s=KEPT_S):
            meanwhile = "its agent has published meanwhile, so the node may be up; check again"
            sys.stderr.write(f"sluice node remove: {meanwhile}\n")
            return EXIT_FAILED
        return await _see_it_done(live, node, len(found.slices))


def _person_agrees(node: str) -> bool:
    """Ask once. Anything but the node's name is a no."""
    return answered(f"Their pods lose them. Type {node} to continue: ") == node


async def _see_it_done(live: LiveFleet, node: str, slices: int) -> int:
    removed = subjects.node(NodeName(node)).subject
    was_read = False

    def is_over(fleet_state: FleetState) -> bool:
        nonlocal was_read
        was_read = was_read or isinstance(fleet_state.values.get(removed), NodeRemoved)
        return is_given_up(fleet_state, node) or (was_read and node in fleet_state.news())

    try:
        await live.until(is_over, within_s=CLOSED_WITHIN_S, what=f"an allocator to give up what {node} held")
    except NotAnsweringError as error:
        if node not in live.fleet_state.news():
            sys.stderr.write(f"sluice node remove: {node} is marked as removed, but {error}; is an allocator active?\n")
            return EXIT_FAILED
    if node in live.fleet_state.news():
        sys.stderr.write(
            f"sluice node remove: the agent of {node} has published: the node is up and keeps its slices\n"
        )
        return EXIT_FAILED
    sys.stdout.write(f"{node} is removed; {slices} {'slice was' if slices == 1 else 'slices were'} given up\n")
    return 0
