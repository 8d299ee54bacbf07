"""What must always hold, and where it is judged.

Declared for docs/invariants.md; nothing is decided by it. `test_invariants` compares it with the judges.
"""

from dataclasses import dataclass

from simulation.planted.allocator.cordons import promised_for_ever, sent_as_decided
from simulation.planted.allocator.jobs import HALF_KEPT, ONE_TOO_MANY
from simulation.planted.allocator.node_removals import (
    GONE_IN_ANOTHER_LIFE,
    OPENED_UNHEARD,
    REMOVED_HAS_NOTHING,
    never_restarted,
    open_while_closing,
    released_over_nothing,
)
from simulation.planted.allocator.preemptions import counted_on_twice, promised_is_had
from simulation.planted.allocator.quotas import BOUND_ON_WHAT_IS_KNOWN, NOTHING_TAKEN_BACK
from simulation.planted.allocator.refusals import first_reason_only
from simulation.planted.allocator.turns import BOTH_KEPT, STARVING_BUGS, takes_what_is_there
from simulation.planted.bug import PlantedBug
from simulation.planted.kube import DECLINED_FORGOTTEN, KEPT_OUT, NOT_TAKEN_BACK, RELEASE_FORGOTTEN, read_is_settled
from simulation.planted.lost_truth import NEVER_ENTERED
from simulation.planted.node.late_processes import written_once
from simulation.planted.node.sizes import SIZE_BUGS
from simulation.planted.protocol import BUGS
from simulation.planted.rare import RARE_BUGS
from simulation.planted.troubles import latest_is_right
from simulation.planted.two_allocators import TWO_BINDS
from simulation.schedules.forgotten import (
    LEFT_BEHIND,
    LINGERS_UNSEEN,
    NOT_KNOWN_TO_HAVE_LIVED,
    foreign_is_ours,
    tickets_unread,
)
from simulation.schedules.unanswered import (
    ASKED_IN_ANY_LIFE,
    EVICTED_IN_ANY_LIFE,
    OUTDATED_NAMES_NOTHING,
    numbers_outlive_their_stream,
    told_in_any_life,
)
from simulation.schedules.unread import NOT_SEEN, REVOKED_UNREAD

PLAYED: tuple[PlantedBug, ...] = (
    sent_as_decided, promised_for_ever, HALF_KEPT, BOUND_ON_WHAT_IS_KNOWN, open_while_closing, takes_what_is_there,
    never_restarted, BOTH_KEPT, TWO_BINDS, REVOKED_UNREAD, NOT_SEEN, tickets_unread,
    NOT_KNOWN_TO_HAVE_LIVED, LEFT_BEHIND, LINGERS_UNSEEN, foreign_is_ours, counted_on_twice, promised_is_had,
    latest_is_right, RELEASE_FORGOTTEN, told_in_any_life, ASKED_IN_ANY_LIFE, EVICTED_IN_ANY_LIFE, read_is_settled,
    OUTDATED_NAMES_NOTHING, numbers_outlive_their_stream, first_reason_only,
    OPENED_UNHEARD, GONE_IN_ANOTHER_LIFE, NEVER_ENTERED, REMOVED_HAS_NOTHING,
    released_over_nothing, written_once, ONE_TOO_MANY, KEPT_OUT, NOT_TAKEN_BACK, DECLINED_FORGOTTEN, NOTHING_TAKEN_BACK,
    *SIZE_BUGS, *STARVING_BUGS, *RARE_BUGS,
)  # fmt: skip
"""Too rare for chance: schedules of their own play these, or a plan that is kept."""
PLANTED: tuple[PlantedBug, ...] = (*BUGS, *(bug for bug in PLAYED if bug not in BUGS))


@dataclass(frozen=True, slots=True)
class Rule:
    """One invariant: its name in a violation, what it says, and which judge holds it."""

    name: str
    says: str
    judged_in: str


RULES = (
    Rule(
        "I1",
        "No place has two owners, processes and tickets included; no shared device two trust domains.",
        "judges/judge.py",
    ),
    Rule("I2", "Every grant is possible on its hardware, and shares fit their device.", "judges/judge.py"),
    Rule("I3", "After the last pod nothing is left: no instance, ticket, daemon or compute mode.", "judges/goals.py"),
    Rule("I4", "Once all is calm every request has an answer, and none waits for what would fit.", "judges/goals.py"),
    Rule("I5", "A withdrawn request stays withdrawn.", "judges/judge.py"),
    Rule("I6", "A slice that is gone is not handed out, and no older order is carried out.", "judges/judge.py"),
    Rule(
        "I11",
        "Writes per request, and fencing records per node, are bounded while one allocator works.",
        "judges/judge.py",
    ),
    Rule("I13", "Foreign instances are not destroyed.", "judges/node_judge.py"),
    Rule("calm", "An agent that ticks rarely has nothing to do but periodic checks.", "judges/judge.py"),
    Rule("on disk", "What an agent published of a slice survives a power cut of its node.", "judges/node_judge.py"),
    Rule("LAW 3", "A slice reported gone is gone; nothing is released or closed before.", "judges/node_judge.py"),
    Rule(
        "opened before use", "Nothing is granted on a node that was not adopted in this incarnation.", "judges/judge.py"
    ),
    Rule("only a Revoke destroys", "Nothing of a slice is destroyed without its Revoke.", "judges/node_judge.py"),
    Rule("undisturbed", "A wanted and bound slice is neither revoked, nor withdrawn, nor cut off.", "judges/judge.py"),
    Rule("bound once", "A request is bound to one allocation.", "judges/judge.py"),
    Rule("bound when ready", "A request is bound only when its slice is ready.", "judges/judge.py"),
    Rule("taken until settled", "An order that was given up does not land later.", "judges/given_up.py"),
    Rule("journal", "A damaged journal is never read as what was written.", "faults/further_faults.py"),
    Rule("MPS", "A share is used only through its device's daemon, within its limits.", "judges/shared_devices.py"),
    Rule("time", "A fractional share is held to its time, or its pod learns that it is not.", "judges/time_quota.py"),
    Rule(
        "told",
        "An agent reports the sizes of the order that it answers, and uses add up to no more.",
        "judges/sizes.py",
    ),
    Rule("one tenant per device", "A MIG UUID belongs to one allocation for ever.", "judges/judge.py"),
    Rule("warm in the way", "A warm instance blocks no grant.", "judges/judge.py"),
    Rule("fixed layout", "Nothing is created on a GPU that its administrator partitions.", "judges/node_judge.py"),
    Rule("together", "No member of a group is bound before each has a slice.", "judges/jobs.py"),
    Rule("quota", "A namespace is granted (of several allocators: bound) no more than its quota.", "judges/quotas.py"),
    Rule("guaranteed", "No eviction takes a namespace below its guarantee.", "judges/guarantees.py"),
    Rule("pods per node", "A node has no more pods than allowed.", "judges/pods_per_node.py"),
    Rule("apart", "No pod is booked where affinity, spread or host ports exclude it.", "judges/pods_apart.py"),
    Rule("claims", "A booking has its request's ResourceClaims, on a node that hands them over.", "judges/claims.py"),
    Rule(
        "cluster claims", "A claim is allocated and reserved once, before its pod's gate opens.", "kube/claim_judge.py"
    ),
    Rule("one GPU", "Devices that must be on one GPU are.", "judges/claims.py"),
    Rule("cordoned", "An allocator that knows of a cordon books nothing new there.", "judges/cordons.py"),
    Rule("limits", "The bus has exactly what the limits file says under its name.", "world/limits_file.py"),
    Rule("less important", "A victim has a lower priority than its preemptor.", "judges/preemptions.py"),
    Rule("never preempts", "Nothing is evicted for a pod whose `preemptionPolicy` is Never.", "judges/preemptions.py"),
    Rule("twice opt-in", "Preemption needs the victim's opt-in and the operator's.", "judges/preemptions.py"),
    Rule(
        "place first",
        "A preemptor's place is booked before the eviction, and it gets that place.",
        "judges/preemptions.py",
    ),
    Rule("booked first", "The same for a pod that is moved.", "judges/moves.py"),
    Rule("never less", "A pod has no less than it asked for.", "judges/moves.py"),
    Rule("one size", "All devices of a container have one size.", "judges/moves.py"),
    Rule("moved too soon", "A moved pod is left alone for a time.", "judges/moves.py"),
    Rule("turn", "A reserved place goes to the request that it was reserved for.", "judges/turns.py"),
    Rule("aging", "A waiting request gets a reservation in bounded time.", "schedules/starvation.py"),
    Rule("cluster", "A pod is pinned with its own slice, once, and other pods are left alone.", "kube/judge.py"),
    Rule("closing", "Closing messages expire, and leave nothing on the bus.", "judges/goals.py"),
)
ELSEWHERE = (
    ("I7", "A restarted or wiped broker loses nothing: all of the above, whatever a seed does to it."),
    ("I8", "Nodes that are lost and return: `LAW 3`, `opened before use`, and `test_node_removals.py`."),
    ("I9", "Stale inventories: `I1` and `opened before use`, with slow pulls (`stale snapshot adopts a node`)."),
    ("I10", "Clocks that are off or jump (the fault `clock`): `undisturbed`."),
    ("I12", "Gaps in watches, and servers that lag: `I5` and `cluster`."),
    ("I14", "Damaged and lost journals: `journal`, `undisturbed`."),
    ("I15", "Overload is refused and not buffered: not simulated (`make overload`)."),
)
"""Invariants without a name of their own in a violation, and by which they are judged."""
