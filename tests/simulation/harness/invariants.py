"""
What must always hold, and where it is judged.

Declared for docs/invariants.md; nothing is decided by it. `test_invariants` compares it with the judges.
"""

from dataclasses import dataclass

from simulation.planted.allocator.cordons import PROMISED_FOR_EVER, SENT_AS_DECIDED
from simulation.planted.allocator.jobs import HALF_KEPT, ONE_TOO_MANY
from simulation.planted.allocator.node_removals import (
    GONE_IN_ANOTHER_LIFE,
    NEVER_BEGUN_ANEW,
    OPEN_WHILE_CLOSING,
    OPENED_UNHEARD,
    RELEASED_OVER_NOTHING,
    REMOVED_HAS_NOTHING,
)
from simulation.planted.allocator.preemptions import COUNTED_ON_TWICE, PROMISED_IS_HAD
from simulation.planted.allocator.quotas import BOUND_ON_WHAT_IS_KNOWN, NOTHING_TAKEN_BACK
from simulation.planted.allocator.turns import BOTH_KEPT, STARVING_BUGS, TAKES_WHAT_IS_THERE
from simulation.planted.bug import PlantedBug
from simulation.planted.kube import DECLINED_FORGOTTEN, KEPT_OUT, NOT_TAKEN_BACK, READ_IS_SETTLED, RELEASE_FORGOTTEN
from simulation.planted.lost_truth import NEVER_ENTERED
from simulation.planted.node.late_processes import WRITTEN_ONCE
from simulation.planted.node.sizes import SIZE_BUGS
from simulation.planted.protocol import BUGS
from simulation.planted.rare import RARE_BUGS
from simulation.planted.troubles import LATE_IS_OVER, LATER_SLICE_STAYS, LATEST_IS_RIGHT
from simulation.planted.two_allocators import GRANTED_AGAIN, OPENED_AGAIN, TWO_BINDS
from simulation.schedules.forgotten import (
    LEFT_BEHIND,
    LINGERS_UNSEEN,
    NOBODYS_IS_OURS,
    NOT_KNOWN_TO_HAVE_LIVED,
    TICKETS_UNREAD,
)
from simulation.schedules.unanswered import ASKED_IN_ANY_LIFE, EVICTED_IN_ANY_LIFE, TOLD_IN_ANY_LIFE
from simulation.schedules.unread import NOT_SEEN, REVOKED_UNREAD

PLAYED: tuple[PlantedBug, ...] = (
    SENT_AS_DECIDED, PROMISED_FOR_EVER, HALF_KEPT, BOUND_ON_WHAT_IS_KNOWN, OPEN_WHILE_CLOSING, TAKES_WHAT_IS_THERE,
    NEVER_BEGUN_ANEW, BOTH_KEPT, GRANTED_AGAIN, OPENED_AGAIN, TWO_BINDS, REVOKED_UNREAD, NOT_SEEN, TICKETS_UNREAD,
    NOT_KNOWN_TO_HAVE_LIVED, LEFT_BEHIND, LINGERS_UNSEEN, NOBODYS_IS_OURS, COUNTED_ON_TWICE, PROMISED_IS_HAD,
    LATEST_IS_RIGHT, RELEASE_FORGOTTEN, TOLD_IN_ANY_LIFE, ASKED_IN_ANY_LIFE, EVICTED_IN_ANY_LIFE, READ_IS_SETTLED,
    OPENED_UNHEARD, GONE_IN_ANOTHER_LIFE, NEVER_ENTERED, REMOVED_HAS_NOTHING, LATE_IS_OVER, LATER_SLICE_STAYS,
    RELEASED_OVER_NOTHING, WRITTEN_ONCE, ONE_TOO_MANY, KEPT_OUT, NOT_TAKEN_BACK, DECLINED_FORGOTTEN, NOTHING_TAKEN_BACK,
    *SIZE_BUGS, *STARVING_BUGS, *RARE_BUGS,
)  # fmt: skip
"""Too rare for chance: schedules of their own play these, or a plan that is kept."""
PLANTED: tuple[PlantedBug, ...] = (*BUGS, *(bug for bug in PLAYED if bug not in BUGS))


@dataclass(frozen=True, slots=True)
class Rule:
    """One invariant: its name in a violation, what it says, and who judges it."""

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
    Rule("I11", "Writes per request are bounded, and fencing records per node.", "judges/judge.py"),
    Rule("I13", "Foreign instances are not destroyed.", "judges/node_judge.py"),
    Rule("on disk", "What an agent published of a slice survives a power cut of its node.", "judges/node_judge.py"),
    Rule("LAW 3", "A slice reported gone is gone; nothing is released or closed before.", "judges/node_judge.py"),
    Rule(
        "opened before use", "Nothing is granted on a node that was not adopted in this incarnation.", "judges/judge.py"
    ),
    Rule("I4", "When all is calm every request has an answer, and none waits for what would fit.", "judges/goals.py"),
    Rule("I5", "A request that was withdrawn stays withdrawn.", "judges/judge.py"),
    Rule("I6", "What is gone is not handed out, and no older order is carried out.", "judges/judge.py"),
    Rule("I11", "Writes per request are bounded, and heads per node.", "judges/judge.py"),
    Rule("I13", "Foreign instances are not destroyed.", "judges/node_judge.py"),
    Rule("on disk", "What an agent publishes about a slice survives a power cut of its node.", "judges/node_judge.py"),
    Rule("LAW 3", "What is said to be gone is gone; nothing is released or closed before.", "judges/node_judge.py"),
    Rule(
        "opened before use",
        "Nothing is granted on a node that was not opened in this life of the bus.",
        "judges/judge.py",
    ),
    Rule("only a Revoke destroys", "Nothing of a slice is destroyed that was not revoked.", "judges/node_judge.py"),
    Rule("undisturbed", "What is wanted and bound is neither revoked, nor withdrawn, nor cut off.", "judges/judge.py"),
    Rule("bound once", "A request is bound to one allocation.", "judges/judge.py"),
    Rule("bound when ready", "A request is bound when its slice is ready.", "judges/judge.py"),
    Rule("taken until settled", "An order that was given up does not land any more.", "judges/given_up.py"),
    Rule("journal", "No damage of a journal passes for what was written.", "faults/further_faults.py"),
    Rule(
        "MPS", "A share is used only through the daemon of its home, and within its limits.", "judges/shared_devices.py"
    ),
    Rule(
        "time",
        "A pod with a part of the time is held to it, or its agent reports that it is not.",
        "judges/time_quota.py",
    ),
    Rule(
        "told",
        "An agent reports the sizes of the order that it answers, and uses add up to no more.",
        "judges/sizes.py",
    ),
    Rule("one tenant per device", "A MIG UUID is of one allocation for ever.", "judges/judge.py"),
    Rule("warm in the way", "An idle instance delays no request.", "judges/judge.py"),
    Rule("fixed layout", "Nothing is made on a GPU that its administrator partitions.", "judges/node_judge.py"),
    Rule("together", "No pod of a job is bound before there was a slice for each.", "judges/jobs.py"),
    Rule(
        "quota", "A namespace is granted, or of several allocators bound, no more than it may have.", "judges/quotas.py"
    ),
    Rule("guaranteed", "No pod is evicted below the guarantee of its namespace.", "judges/guarantees.py"),
    Rule("pods per node", "A node has no more pods than it may.", "judges/pods_per_node.py"),
    Rule(
        "apart",
        "No pod is booked where others, or what it says of them and of ports, keep it out.",
        "judges/pods_apart.py",
    ),
    Rule("cordoned", "A process that read a cordon books nothing new there.", "judges/cordons.py"),
    Rule("limits", "The bus says what the file says, and nothing else in its name.", "world/limits_file.py"),
    Rule("less important", "An evicted pod has a lower priority.", "judges/preemptions.py"),
    Rule("never preempts", "No pod is evicted for one whose `preemptionPolicy` is Never.", "judges/preemptions.py"),
    Rule("twice opt-in", "Both the evicted and the evicting pod have opted in.", "judges/preemptions.py"),
    Rule(
        "place first",
        "A place is booked before a pod is evicted for it, and goes to the booked request.",
        "judges/preemptions.py",
    ),
    Rule("booked first", "The same for a pod that is moved.", "judges/moves.py"),
    Rule("never less", "A pod has no less than it asked for.", "judges/moves.py"),
    Rule("one size", "All devices of one container are of one size.", "judges/moves.py"),
    Rule("moved too soon", "A pod is left alone for a time after it was moved.", "judges/moves.py"),
    Rule("turn", "A promised place goes to its request.", "judges/turns.py"),
    Rule("aging", "A waiting request is promised a place in bounded time.", "schedules/starvation.py"),
    Rule("cluster", "A pod is let go with its own slice, once, and nothing is done to others.", "kube/judge.py"),
    Rule("closing", "Closing words run out, and leave nothing on the bus.", "judges/goals.py"),
)
ELSEWHERE = (
    ("I7", "A restarted or wiped broker loses nothing: all of the above, whatever a seed does to it."),
    ("I8", "Nodes that are lost and return: `LAW 3`, `opened before use`, and `test_removals.py`."),
    (
        "I9",
        "Stale inventories: `I1` and `opened before use`, with slow pulls (`stale snapshot adopts a node`).",
    ),
    ("I10", "Clocks that are off or jump (the fault `clock`): `undisturbed`."),
    ("I12", "Gaps in watches, and servers that lag: `I5` and `cluster`."),
    ("I14", "Damaged and lost journals: `journal`, `undisturbed`, and `test_schedules.py`."),
    ("I15", "Overload is refused and not buffered: not simulated (`make overload`)."),
)
"""Invariants without a name of their own in a violation, and by which they are judged."""

CASES = (
    Case("a pod is told of a slice that was waived before", ("bound in any life",)),
    Case("it has not opened its device when its slice is given back", ("an empty device is enough",)),
    Case("a Deployment creates a pod before it ends another", ("one too many waits for ever",)),
    Case("the node is cordoned while the slice is being made", ("pinned whatever its node says",)),
    Case("another pod-watcher reads the `Bound`", ("let go with what was declined", "declined and kept")),
    Case(
        "STATE loses its latest messages, and new ones reuse their numbers",
        test="tests/simulation/schedules/test_rebuild.py::test_after_a_reboot_pods_have_their_new_devices_at_once_though_the_bus_forgets",
    ),
    Case("a node's memory disk is emptied in the same boot", ("what was written once is there",)),
    Case("an agent has no file descriptor left, and sees no process", ("unseen is no process",)),
    Case("the clock of whoever makes the streams anew is an hour behind", ("old numbers kept",)),
    Case(
        "the bus is wiped while a patch that binds a pod is without its answer", ("an unanswered patch binds no pod",)
    ),
    Case(
        "the node is back, and one of two allocators has not heard it",
        ("a removed node that no ledger knows has nothing",),
    ),
    Case(
        "who stood by takes over, and counts what a source told before",
        ("what was told to who stood by counts for ever",),
    ),
    Case("it is read, and lands after that", ("a read tells what became of a patch",)),
    Case(
        "somebody takes the annotation away",
        test="tests/unit/pod_watcher/cluster/test_cluster_pods.py::"
        "test_a_source_has_not_said_all_while_a_pod_that_runs_does_not_say_what_it_asks_for",
    ),
    Case(
        "a toleration of a new kind is added to a pod that waits",
        test="tests/unit/pod_watcher/cluster/test_cluster_pods.py::"
        "test_a_pod_that_waits_is_not_refused_by_a_successor_for_an_edit_that_disturbed_nothing",
    ),
    Case(
        "somebody adds a toleration of a new kind to a pod",
        test="tests/simulation/schedules/test_kube.py::"
        "test_a_pod_whose_spec_has_become_strange_keeps_its_slice_when_the_bus_is_wiped",
    ),
    Case(
        "its refusal comes after a wipe",
        test="tests/unit/allocator/request/test_late_bindings.py::"
        "test_a_pod_that_runs_keeps_its_slice_although_a_refusal_lands_late",
    ),
    Case(
        "the last word of an earlier life lands late",
        test="tests/unit/node_agent/test_lost_journal.py::test_a_slice_that_was_closed_already_is_not_handed_out_again",
    ),
    Case(
        "what was said of it at first lands then",
        test="tests/unit/allocator/node/test_adopt.py::"
        "test_a_rejection_that_lands_after_a_wipe_ends_nothing_before_its_source_has_spoken",
    ),
    Case("a server that lags serves the reading", ("what no reading shows is lost",)),
    Case(
        "what its source asked at first lands too, and the slice that it names was surplus",
        ("nothing is found where a binding names what is gone",),
    ),
    Case("a pod-watcher that never saw it run unsays what another one said", ("who has ended had nothing",)),
    Case("a paused old pod-watcher says a request after the new one withdrew it", ("request unguarded",)),
    Case("entry 11 arrives after 12", ("fresh guard", "guard too small")),
    Case("two allocators grant one request on two nodes", ("two binds", "surplus kept")),
    Case("a pod asks for a model whose node joins later", ("a refusal for capability is final",)),
    Case(
        "an older allocator has refused what a newer one serves",
        test="tests/unit/allocator/node/test_served_when_it_joins.py::"
        "test_nobody_loses_a_place_over_a_refusal_that_holds_no_more",
    ),
    Case("one of two allocators has not heard that a pod is gone", ("granted again at once",)),
    Case(
        "one of two allocators has not read the grant for which a pod is to go",
        test="tests/simulation/schedules/allocator/test_two_allocators.py::"
        "test_a_pod_is_not_told_to_go_and_to_stay_in_turn_at_the_speed_of_the_bus",
    ),
    Case(
        "the GPU of one pod of a job breaks before the job has begun",
        test="tests/unit/allocator/gangs/test_gangs.py::test_a_place_that_is_lost_costs_the_others_of_its_job_nothing",
    ),
    Case(
        "an important pod is deleted while its grant is without an answer",
        test="tests/simulation/schedules/allocator/test_preemption.py::"
        "test_nobody_goes_for_a_pod_that_is_deleted_before_its_grant_has_an_answer",
    ),
    Case(
        "of two slices that a pod was granted",
        test="tests/unit/allocator/preemption/test_evicted_in_vain.py::"
        "test_a_pod_that_runs_elsewhere_does_not_go_for_a_surplus_slice_of_its",
    ),
    Case(
        "nor that a job is, of which each pod rests",
        test="tests/unit/allocator/request/test_taken_back_grants.py::test_a_job_rests_like_one_pod_and_keeps_its_turn",
    ),
    Case("two open a node in turn at the speed of the bus", ("opened again at once",)),
    Case(
        "it lands beyond a grant unseen",
        test="tests/unit/sluice/contracts/test_outbox.py::"
        "test_an_own_write_beyond_what_a_lagging_server_shows_does_not_move_the_guard",
    ),
    Case("a server that lags is read anew, and a pod comes to a node", ("every reading is the newest",)),
    Case(
        "a cluster of brokers sends an agent's entries to a pull of its life before",
        test="tests/integration/test_agents_of_a_cluster.py::test_an_agent_that_is_started_again_hears_orders",
    ),
    Case(
        "an ask is said again, and is read behind what its source said of all",
        test="tests/unit/allocator/node/test_adopt.py::"
        "test_who_was_asked_for_behind_his_sources_last_word_keeps_his_slice",
    ),
    Case("a GPU answers again while nobody serves it", ("any server has the last message",)),
    Case("STATE forgets its latest words and gives their numbers", ("no number of a stream comes twice",)),
    Case("it shows a request that was released", ("answers are as old as the reading",)),
    Case("a server that lags shows a source an ask", ("asked over a withdrawal",)),
    Case(
        "an API server that lags shows a pod",
        test="tests/unit/pod_watcher/cluster/test_cluster_pods.py::"
        "test_a_pod_that_ended_while_nobody_showed_it_is_not_asked_for_again",
    ),
    Case("the latest of two ids is taken for the pod's own", ("the latest id is the right one",)),
    Case(
        "a server that lags hides what a pod runs on",
        ("what is heard of late has no slice", "of two slices the later one is the pod's"),
    ),
    Case("two allocators promise one request two places", ("both promises kept",)),
    Case("another becomes free beside them", ("promise waited for to the end",)),
    Case("an agent that has not read the Grant", ("takes what is there", "a revoke names no earlier slice")),
    Case("two allocators grant the last of a quota", ("nothing taken back", "bound on what is known")),
    Case(
        "an order before the grant was overwritten by a later one",
        test="tests/unit/allocator/quotas/test_quotas_of_two_allocators.py::test_nobody_is_bound_to_what_may_still_be_taken_back",
    ),
    Case("the surplus slice of a pod that runs elsewhere", ("drained by the ledger alone",)),
    Case(
        "two read different files while one is rolled out",
        test="tests/unit/pod_watcher/test_limits_source.py::test_two_with_different_files_of_one_source_write_seldom_and_not_for_long",
    ),
    Case(
        "one allocator's patience ends while another binds",
        test="tests/simulation/schedules/allocator/test_jobs.py::test_two_jobs_that_each_fit_alone_do_not_block_each_other",
    ),
    Case(
        "a pod that a queueing system has not let in",
        test="tests/kubernetes/test_sharing_fairly.py::test_nobody_of_a_job_asks_before_kueue_has_let_it_in",
    ),
    Case("smaller first lets a neighbour into", ("new size at once", "told at once", "as before when it ails")),
    Case("a late duplicate of a Grant after the Revoke", ("late grant", "no tombstones")),
    Case("it sees no instance there and says never made", ("not seen is not there",)),
    Case(
        "it is left out, and what was being made there is gone and stays",
        test="tests/unit/node_agent/test_gpus_without_uuid.py::"
        "test_what_was_being_made_on_it_when_its_agent_was_killed_is_not_forgotten",
    ),
    Case(
        "the surplus of two shares in one home is revoked",
        test="tests/unit/node_agent/test_reserved_places.py::"
        "test_a_surplus_share_is_given_back_without_ending_its_pod_on_the_other",
    ),
    Case("broker and journal are lost in one moment", ("the ledger alone knows",)),
    Case("its place is nobody's until a person looks", ("what was under way is foreign",)),
    Case("it cannot be made again at once, is said to have failed", ("survivors are unknown",)),
    Case(
        "bus and disk are wiped, and a pod that cannot leave its node",
        test="tests/unit/allocator/request/test_lost_slices.py::"
        "test_a_slice_that_such_a_pod_was_given_elsewhere_is_waived_and_taken_back",
    ),
    Case(
        "it fails before it is bound in this life of the bus",
        test="tests/unit/allocator/request/test_lost_slices.py::test_a_pod_whose_slice_is_just_taken_back_is_given_no_other",
    ),
    Case("a budget is in the way of a pod's eviction", ("a lost slice is forgotten with the bus",)),
    Case(
        "who gave it went, too, and then the budget lets the pod go",
        test="tests/unit/pod_watcher/cluster/test_cluster_pods.py::"
        "test_an_order_that_went_with_the_broker_is_not_carried_out",
    ),
    Case("it was away when the slice was lost", ("all processes know what they have lost",)),
    Case(
        "and a binding of before lands",
        test="tests/unit/allocator/request/test_lost_slices.py::"
        "test_a_pod_goes_whose_slice_is_being_taken_back_when_its_source_does_not_know",
    ),
    Case("an agent tells of its slice again after a wipe", ("messages of removed nodes stay",)),
    Case(
        "a binding that was sent before a wipe lands after it",
        test="tests/unit/allocator/request/test_lost_slices.py::"
        "test_a_binding_that_landed_after_a_wipe_does_not_stand_for_ever",
    ),
    Case("sent before a wipe lands after it; another had landed before", ("a late binding counts",)),
    Case(
        "the slice that it names is closed by then",
        test="tests/unit/allocator/request/test_late_bindings.py::"
        "test_a_pod_keeps_its_slice_although_a_late_word_names_one_that_is_closed",
    ),
    Case("lands while its slice is there, of which its source never heard", ("its source knows what it is bound to",)),
    Case("that of a pod whose containers have ended", ("closed once and for all",)),
    Case("an empty ledger looks like an empty node", ("used before open", "nothing adopted")),
    Case(
        "an adopting entry is overwritten by a Revoke before it is read",
        test="tests/unit/allocator/node/test_adopt.py::test_what_a_head_says_was_adopted_is_waited_for",
    ),
    Case("somebody has made an instance where a revoked slice was", ("opened before what is gone is closed",)),
    Case("one was leaving it just then", ("tickets name all who are in a home",)),
    Case("an administrator has made one there by hand", ("what stands at a granted place is the grant's",)),
    Case("agents report before sources have listed", ("orphans at once",)),
    Case(
        "the bus has forgotten an ask by the time its source's word lands",
        test="tests/unit/allocator/node/test_adopt.py::"
        "test_what_another_allocator_binds_is_no_orphan_until_its_source_has_told_all_once_more",
    ),
    Case("its first word is without an answer, and lands after a wipe", (TOLD_IN_ANY_LIFE.name,)),
    Case(
        "the API server is too busy to list the pods of others",
        test="tests/simulation/schedules/test_kube.py::test_a_pod_without_its_label_keeps_its_slice_when_the_bus_is_wiped",
    ),
    Case(
        "STATE forgets a request, and its pod goes",
        test="tests/unit/allocator/request/test_orphaned_answers.py::test_an_answer_that_nobody_asks_for_is_ended",
    ),
    Case(
        "shows its pod, long gone, to a pod-watcher that never knew it",
        test="tests/unit/allocator/request/test_orphaned_answers.py::test_who_has_not_heard_that_all_is_over_is_told_again",
    ),
    Case("an agent and an inventory are without answers to their first words", ("whatever was pulled opens its node",)),
    Case("an adopting write without an answer lands after", ("an order of another life stands",)),
    Case("it lands in the new life when its request has ended", ("a waiver of another life is not there",)),
    Case("it is seen before the node that has its slice", ("what is not booked is not there",)),
    Case("an order to evict is without an answer, and lands after a wipe", (EVICTED_IN_ANY_LIFE.name,)),
    Case(
        "he goes while the bus is wiped, and an agent still has the place",
        test="tests/unit/allocator/preemption/test_preemption.py::test_nobody_is_evicted_after_a_wipe_for_who_has_not_asked_again",
    ),
    Case("what it asked at first comes once more, after a wipe", (ASKED_IN_ANY_LIFE.name,)),
    Case("both come back with their nodes after a wipe", ("any that is ready",)),
    Case(
        "its source dies before, and the broker is wiped",
        test="tests/unit/console/run/test_run_request.py::test_a_command_starts_only_on_what_the_source_of_its_pod_remembers",
    ),
    Case("somebody removes a node that lives", ("nobody answers",)),
    Case("grants are closed while the node looks open", ("closed while open",)),
    Case("an agent that lives has not looked yet", ("removed at once",)),
    Case("an agent comes back in the middle of it", ("closed is believed",)),
    Case(
        "a node is away for longer than closing words live",
        test="tests/unit/allocator/node/test_adopt.py::"
        "test_what_an_agent_has_not_read_to_be_closed_is_closed_again_when_it_comes_back",
    ),
    Case(
        "it stood still with a binding of before a wipe",
        test="tests/integration/test_kube_watch.py::test_a_watcher_whose_lease_has_run_out_writes_to_no_pod",
    ),
    Case("the agent speaks before that write is answered", ("open while closing",)),
    Case("one of two allocators reads late, and closes at once", ("time never restarted",)),
    Case("one of two allocators hears of the end of a head", ("opened on what was known before",)),
    Case("BOOK is lost, and STATE is not", ("opened once and for all",)),
    Case("the broker is wiped once more while it is without an answer", ("what went with its node stays away",)),
    Case("it is without an answer when the broker is wiped once more", ("released over nothing",)),
)
LAWS = (
    Case("A place is free again only when its agent says", ("free at revoke", "released at once", "holders not asked")),
    Case("Absence from the ledger is never an order", ("absence destroys",)),
    Case("A write without an answer is unknown", ("settled by a read", "written on newer knowledge")),
    Case("An agent journals it", ("acknowledged before it is on disk", "damage not noticed")),
    Case("acts only on a newer one, echoes", ("late grant", "first revision for ever")),
    Case("Waiting, granted, ready, bound, released", ("bound at the grant",)),
    Case("Everything the pulled snapshot reports gets an adopting entry", ("an old picture will do",)),
    Case("every rule above holds", ("two binds", "surplus kept", "nothing taken back")),
)
"""Rules without a *case* beside them, by words of the protocol."""
