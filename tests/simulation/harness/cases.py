"""
The cases of docs/protocol.md: interleavings that break a simpler rule, each with what would not survive it.

`make docs` writes the page's table from them. `test_invariants` checks that the page cites each id once.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Case:
    """
    One interleaving. `id` is cited by docs/protocol.md and never reused; `rule` is the law or section that covers it.

    `bugs` are names of planted bugs that break it, `test` is `path::name` of the test where no bug is planted.
    """

    id: str
    rule: str
    words: str
    bugs: tuple[str, ...] = ()
    test: str = ""


CASES = (
    Case(
        "P-001",
        "law 3",
        "A place is given again, or `Released` published, while a process is still on the device.",
        ("free at revoke", "released at once", "holders not checked"),
    ),
    Case("P-002", "law 4", "The ledger lacks a slice, and its agent destroys it.", ("absence destroys",)),
    Case(
        "P-003",
        "law 5",
        "A write is given up or replaced while its first attempt is under way.",
        ("settled by a read", "unanswered write sent with a newer guard"),
    ),
    Case("P-004", "§1", "A binding from before a wipe names a waived slice.", ("Bound of any incarnation",)),
    Case(
        "P-005",
        "§1",
        "A host an hour behind recreates the streams; republished values look older.",
        ("sequences compared across incarnations", "outbox keeps an earlier stream's numbers"),
    ),
    Case(
        "P-006",
        "§2 W1",
        "A paused pod-watcher publishes a request after its successor withdrew it.",
        ("request unguarded",),
    ),
    Case(
        "P-007",
        "§2 W2",
        "Entry 11 arrives after 12; a fresh guard books a place twice.",
        ("fresh guard", "guard too small"),
    ),
    Case(
        "P-008",
        "§2 W2",
        "A lagging server is read while an own write lands beyond an unseen grant.",
        test="tests/unit/sluice/contracts/test_outbox.py::"
        "test_an_own_write_beyond_what_a_lagging_server_shows_does_not_move_the_guard",
    ),
    Case(
        "P-009",
        "§3",
        "A broker cluster sends an agent's entries to a pull of its previous run.",
        test="tests/integration/test_agents_of_a_cluster.py::test_an_agent_that_is_started_again_hears_orders",
    ),
    Case(
        "P-010",
        "§3",
        "A GPU answers again while its agent is down; the next run reads an older status.",
        ("lagging single read believed",),
    ),
    Case(
        "P-011",
        "§3",
        "STATE loses its latest messages and reuses their numbers for an older status.",
        ("reused STATE numbers trusted",),
    ),
    Case("P-012", "§3", "A lagging server hides a new cordon.", ("every reading counts as the newest",)),
    Case(
        "P-013",
        "§3",
        "A lagging server shows a released request, which gets a slice again.",
        ("answers deleted by a reading",),
    ),
    Case("P-014", "§4", "A request is bound before its slice is ready.", ("bound at the grant",)),
    Case("P-015", "§4 guards", "Two allocators grant one request on two nodes.", ("two binds", "surplus kept")),
    Case(
        "P-016",
        "§4 guards",
        "One of two allocators has not read a withdrawal, and grants again at once.",
        ("granted again at once",),
    ),
    Case(
        "P-017",
        "§4 guards",
        "The same for a gang: each pod pauses, and the gang is granted whole.",
        test="tests/unit/allocator/request/test_taken_back_grants.py::test_a_job_rests_like_one_pod_and_keeps_its_turn",
    ),
    Case(
        "P-018",
        "§4 guards",
        "A lagging server shows a source a request that it withdrew and closed.",
        ("requested over a withdrawal",),
    ),
    Case(
        "P-019",
        "§4 guards",
        "A lagging API server shows a pod whose end another pod-watcher published.",
        test="tests/unit/pod_watcher/cluster/test_cluster_pods.py::"
        "test_a_pod_that_ended_while_nobody_showed_it_is_not_asked_for_again",
    ),
    Case(
        "P-020",
        "§4 request",
        "The later of two ids counts, and the slice in use is revoked.",
        ("latest request id wins",),
    ),
    Case(
        "P-021",
        "§4 request",
        "A lagging server hides the request that a pod runs on.",
        ("late request has no slice", "later of two slices wins"),
    ),
    Case("P-022", "§4 refused", "A pod asks for a model whose node joins later.", ("refusal for capability final",)),
    Case(
        "P-023",
        "§4 refused",
        "An older allocator refused what a newer one serves.",
        test="tests/unit/allocator/node/test_served_when_it_joins.py::"
        "test_nobody_loses_a_place_over_a_refusal_that_holds_no_more",
    ),
    Case("P-024", "§4 reservations", "Two allocators reserve two places for one request.", ("both reservations kept",)),
    Case(
        "P-025",
        "§4 reservations",
        "A pod has a reservation for two GPUs, one free; another becomes free beside it.",
        ("reservation never swapped",),
    ),
    Case(
        "P-026",
        "§4 reservations",
        "A preemptor is deleted while its grant is unanswered.",
        test="tests/simulation/schedules/allocator/test_preemption.py::"
        "test_nobody_goes_for_a_pod_that_is_deleted_before_its_grant_has_an_answer",
    ),
    Case(
        "P-027",
        "§4 reservations",
        "Of a pod's two slices, a preemptor takes the one where the pod does not run.",
        test="tests/unit/allocator/preemption/test_evicted_in_vain.py::"
        "test_a_pod_that_runs_elsewhere_does_not_go_for_a_surplus_slice_of_its",
    ),
    Case(
        "P-028",
        "§4 reservations",
        "An agent that missed a Grant takes the tenants' device for the reserved one.",
        ("agent takes an existing device", "revoke ignores after"),
    ),
    Case(
        "P-029",
        "§4 quotas",
        "Two allocators grant the last of a quota; one binds before reading the other's grant.",
        ("nothing taken back", "bound before all limits are read"),
    ),
    Case(
        "P-030",
        "§4 quotas",
        "A grant exceeds an overwritten quota, and a more recent allocator has bound it.",
        test="tests/unit/allocator/quotas/test_quotas_of_two_allocators.py::"
        "test_nobody_is_bound_to_what_may_still_be_taken_back",
    ),
    Case(
        "P-031",
        "§4 cordons",
        "A drained node has the surplus slice of a pod that runs elsewhere.",
        ("drained by the ledger alone",),
    ),
    Case(
        "P-032",
        "§4 cordons",
        "Two pod-watchers read different limits files during a rollout.",
        test="tests/unit/pod_watcher/test_limits_source.py::"
        "test_two_with_different_files_of_one_source_write_seldom_and_not_for_long",
    ),
    Case("P-033", "§4 groups", "A Deployment whose pods are a group surges.", ("surplus group member waits",)),
    Case(
        "P-034",
        "§4 groups",
        "One allocator's patience ends while another binds.",
        test="tests/simulation/schedules/allocator/test_jobs.py::"
        "test_two_jobs_that_each_fit_alone_do_not_block_each_other",
    ),
    Case(
        "P-035",
        "§4 groups",
        "A gang's GPU breaks before it has begun.",
        test="tests/unit/allocator/gangs/test_gangs.py::test_a_place_that_is_lost_costs_the_others_of_its_job_nothing",
    ),
    Case(
        "P-036",
        "§4 groups",
        "A pod not admitted by a queueing system holds a slice.",
        test="tests/kubernetes/test_sharing_fairly.py::test_nobody_of_a_job_asks_before_kueue_has_let_it_in",
    ),
    Case(
        "P-037",
        "§4 edit",
        "A waiting pod gets an unknown toleration, and its pod-watcher restarts.",
        test="tests/unit/pod_watcher/cluster/test_cluster_pods.py::"
        "test_a_pod_that_waits_is_not_refused_by_a_successor_for_an_edit_that_disturbed_nothing",
    ),
    Case(
        "P-038",
        "§4 resizing",
        "A resized share counts too early: a neighbour gets memory in use.",
        ("new size counts at once", "new size published at once", "failed resize counts as before"),
    ),
    Case("P-039", "§5 revision", "A duplicate Grant arrives after the Revoke.", ("late grant", "no tombstones")),
    Case(
        "P-040",
        "§5 revision",
        "An agent publishes, or trusts, a record that its journal has not whole.",
        ("acknowledged before it is on disk", "damage not noticed"),
    ),
    Case(
        "P-041",
        "§5 revision",
        "An agent answers an order under an earlier revision.",
        ("late grant", "first revision reported always"),
    ),
    Case(
        "P-042",
        "§5 Revoke",
        'An agent without journal sees no instance on a silent GPU and answers "never made".',
        ("unseen instance counts as absent",),
    ),
    Case(
        "P-043",
        "§5 Revoke",
        "A GPU cannot report its UUID; its unfinished slice is reported gone, and stays.",
        test="tests/unit/node_agent/test_gpus_without_uuid.py::"
        "test_what_was_being_made_on_it_when_its_agent_was_killed_is_not_forgotten",
    ),
    Case(
        "P-044",
        "§5 tickets",
        "Broker and journal are lost: a running pod gets a second slice.",
        ("tickets ignored without a journal",),
    ),
    Case(
        "P-045",
        "§5 marks",
        "Journal and ledger are lost while an instance is created; its place stays unusable.",
        ("marks ignored after a loss",),
    ),
    Case(
        "P-046",
        "§5 marks",
        "An agent without journal takes an administrator's instance at a granted place.",
        ("any instance at a granted place is ours",),
    ),
    Case(
        "P-047",
        "§5 marks",
        "A tenant leaves a shared device when journal and ledger are lost.",
        ("inherited home trusted without a check",),
    ),
    Case(
        "P-048",
        "§5 destroy",
        "A process outlives its pod, then opens its device, by now another's.",
        ("empty device is enough",),
    ),
    Case(
        "P-049",
        "§5 destroy",
        "An agent has no file descriptor left, so sees no process.",
        ("unreadable processes count as none",),
    ),
    Case(
        "P-050",
        "§5 tickets",
        "A node's memory disk is emptied within a boot; its containers cannot restart.",
        ("ticket not restored",),
    ),
    Case(
        "P-051",
        "§5 tickets",
        "The broker's node loses power; STATE loses messages and reuses their numbers.",
        test="tests/simulation/schedules/test_rebuild.py::"
        "test_after_a_reboot_pods_have_their_new_devices_at_once_though_the_bus_forgets",
    ),
    Case(
        "P-052",
        "§5 tickets",
        "A slice on a new disk cannot be remade at once, and counts as failed.",
        ("lived ignored",),
    ),
    Case(
        "P-053",
        "§5 shares",
        "The surplus of a pod's two shares on one device is revoked.",
        test="tests/unit/node_agent/test_reserved_places.py::"
        "test_a_surplus_share_is_given_back_without_ending_its_pod_on_the_other",
    ),
    Case(
        "P-054", "§6 adoption", "An empty ledger looks like an empty node.", ("used before adoption", "nothing adopted")
    ),
    Case(
        "P-055",
        "§6 adoption",
        "A stale snapshot adopts a node without the slice of a running pod.",
        ("stale snapshot adopts a node",),
    ),
    Case(
        "P-056",
        "§6 adoption",
        "An adopting entry is overwritten by a Revoke before it is read.",
        test="tests/unit/allocator/node/test_adopt.py::test_what_a_head_says_was_adopted_is_waited_for",
    ),
    Case(
        "P-057",
        "§6 adoption",
        "An agent without journal takes a person's instance at a revoked place.",
        ("adopted before gone slices are closed",),
    ),
    Case(
        "P-058",
        "§6 adoption",
        "First messages of agent and inventory land after a wipe and show an empty node.",
        ("snapshot of any incarnation adopts",),
    ),
    Case(
        "P-059",
        "§6 adoption",
        "An adopting entry lands after the next wipe; an agent without journal ignores it.",
        ("order of another incarnation stands",),
    ),
    Case("P-060", "§6 adoption", "BOOK is lost, STATE is not, while an agent creates a slice.", ("adopted once only",)),
    Case(
        "P-061",
        "§6 adoption",
        "Two allocators adopt a node in turn, each for another run of its agent.",
        ("adopted again at once",),
    ),
    Case("P-062", "§6 orphans", "Agents report before sources have listed.", ("orphans at once",)),
    Case(
        "P-063",
        "§6 orphans",
        "A source's first `SourceSynced` lands after a wipe.",
        ("SourceSynced of any incarnation",),
    ),
    Case(
        "P-064",
        "§6 orphans",
        "The API server is too busy to list other pods; one lost our label.",
        test="tests/simulation/schedules/test_kube.py::"
        "test_a_pod_without_its_label_keeps_its_slice_when_the_bus_is_wiped",
    ),
    Case(
        "P-065",
        "§6 orphans",
        "A standby takes over and counts what a source published before a wipe.",
        ("standby keeps an old SourceSynced",),
    ),
    Case(
        "P-066",
        "§6 orphans",
        "The bus forgets a request before `SourceSynced` lands; one of two allocators reads late.",
        test="tests/unit/allocator/node/test_adopt.py::"
        "test_what_another_allocator_binds_is_no_orphan_until_its_source_has_told_all_once_more",
    ),
    Case(
        "P-067",
        "§6 orphans",
        "A republished request is read after `SourceSynced`; an ended one makes up the count.",
        test="tests/unit/allocator/node/test_adopt.py::"
        "test_who_was_asked_for_behind_his_sources_last_word_keeps_his_slice",
    ),
    Case(
        "P-068",
        "§6 orphans",
        "STATE forgets a request, and its pod ends unobserved.",
        test="tests/unit/allocator/request/test_orphaned_answers.py::test_an_answer_that_nobody_asks_for_is_ended",
    ),
    Case(
        "P-069",
        "§6 orphans",
        "The bus forgets a request; an API server shows its gone pod to a new pod-watcher.",
        test="tests/unit/allocator/request/test_orphaned_answers.py::"
        "test_who_has_not_heard_that_all_is_over_is_told_again",
    ),
    Case(
        "P-070",
        "§6 orphans",
        "A waiver of another incarnation lands after its request ended.",
        ("waiver of another incarnation ignored",),
    ),
    Case(
        "P-071",
        "§6 no other",
        "A request is read before the node that has its slice.",
        ("slice without entry counts as absent",),
    ),
    Case(
        "P-072",
        "§6 no other",
        "A request's first version lands after a wipe, while its node is away.",
        ("request of any incarnation",),
    ),
    Case(
        "P-073",
        "§6 no other",
        "A pod's two slices return after a wipe; the wrong one is ready first.",
        ("first ready slice bound",),
    ),
    Case(
        "P-074",
        "§6 no other",
        "A `Bound` from before a wipe overwrites a newer one; its pod runs.",
        ("a late binding counts",),
    ),
    Case(
        "P-075",
        "§6 no other",
        "The slice of such a `Bound` is closed by then.",
        test="tests/unit/allocator/request/test_late_bindings.py::"
        "test_a_pod_keeps_its_slice_although_a_late_word_names_one_that_is_closed",
    ),
    Case(
        "P-076",
        "§6 no other",
        "The bus is wiped while a binding patch is unanswered.",
        ("unanswered patch counts as failed",),
    ),
    Case(
        "P-077", "§6 no other", "A pod is read without the patch, which lands after that.", ("a read settles a patch",)
    ),
    Case(
        "P-078",
        "§6 no other",
        "A pod-watcher that never saw a pod run overwrites another's request.",
        ("ended pod had no slice",),
    ),
    Case(
        "P-079",
        "§6 no other",
        "A running pod gets an unknown toleration, and the bus is wiped.",
        test="tests/simulation/schedules/test_kube.py::"
        "test_a_pod_whose_spec_has_become_strange_keeps_its_slice_when_the_bus_is_wiped",
    ),
    Case(
        "P-080",
        "§6 no other",
        "A differently configured allocator's refusal lands after a wipe.",
        test="tests/unit/allocator/request/test_late_bindings.py::"
        "test_a_pod_that_runs_keeps_its_slice_although_a_refusal_lands_late",
    ),
    Case(
        "P-081",
        "§6 no other",
        "A rejection of a request since corrected lands after a wipe.",
        test="tests/unit/allocator/node/test_adopt.py::"
        "test_a_rejection_that_lands_after_a_wipe_ends_nothing_before_its_source_has_spoken",
    ),
    Case(
        "P-082",
        "§6 no other",
        "A running pod's request annotation is removed, and the bus is wiped.",
        test="tests/unit/pod_watcher/cluster/test_cluster_pods.py::"
        "test_a_source_has_not_said_all_while_a_pod_that_runs_does_not_say_what_it_asks_for",
    ),
    Case(
        "P-083",
        "§6 lost",
        "Bus and disk are wiped, and a pinned pod is bound on another node.",
        test="tests/unit/allocator/request/test_lost_slices.py::"
        "test_a_slice_that_such_a_pod_was_given_elsewhere_is_waived_and_taken_back",
    ),
    Case(
        "P-084",
        "§6 lost",
        "A remembered slice fails before it is bound in this incarnation.",
        test="tests/unit/allocator/request/test_lost_slices.py::"
        "test_a_pod_whose_slice_is_just_taken_back_is_given_no_other",
    ),
    Case(
        "P-085", "§6 lost", "A budget blocks an eviction when the bus is wiped.", ("lost slice forgotten with the bus",)
    ),
    Case("P-086", "§6 lost", "The source was away when the slice was lost.", ("source assumed to know a loss",)),
    Case(
        "P-087",
        "§6 lost",
        "The source was away, and a binding from before the wipe lands.",
        test="tests/unit/allocator/request/test_lost_slices.py::"
        "test_a_pod_goes_whose_slice_is_being_taken_back_when_its_source_does_not_know",
    ),
    Case(
        "P-088",
        "§6 lost",
        "An eviction order is lost with the bus; then the budget allows it.",
        test="tests/unit/pod_watcher/cluster/test_cluster_pods.py::"
        "test_an_order_that_went_with_the_broker_is_not_carried_out",
    ),
    Case(
        "P-089", "§6 lost", "An unanswered eviction order lands after a wipe.", ("eviction order of any incarnation",)
    ),
    Case(
        "P-090",
        "§6 lost",
        "A preemptor is deleted during a wipe, and an agent still has its reservation.",
        test="tests/unit/allocator/preemption/test_preemption.py::"
        "test_nobody_is_evicted_after_a_wipe_for_who_has_not_asked_again",
    ),
    Case("P-091", "§6 removal", "A living node is removed.", ("removal ignores an agent that answers",)),
    Case(
        "P-092", "§6 removal", "Grants are closed while the node looks adopted.", ("grants closed before the record",)
    ),
    Case("P-093", "§6 removal", "A living agent has not noticed the removal yet.", ("removed at once",)),
    Case(
        "P-094",
        "§6 removal",
        "An agent comes back in the middle of its removal.",
        ("closed entries believed over agents",),
    ),
    Case(
        "P-095",
        "§6 removal",
        "The agent publishes before a closing is answered, and a grant follows.",
        ("unanswered closing counts as open",),
    ),
    Case(
        "P-096",
        "§6 removal",
        "One of two allocators reads late and closes what the other grants.",
        ("removal grace never restarted",),
    ),
    Case(
        "P-097",
        "§6 removal",
        "One of two allocators knows the node from before grants that were closed.",
        ("adopted again on old knowledge",),
    ),
    Case(
        "P-098",
        "§6 removal",
        "The node is back, which one of two allocators has not read.",
        ("removed node released without a close",),
    ),
    Case(
        "P-099",
        "§6 removal",
        "The broker is wiped while a closing is unanswered.",
        ("removal close of any incarnation",),
    ),
    Case("P-100", "§6 removal", "The same with an unanswered `Released`.", ("released over an empty subject",)),
    Case(
        "P-101",
        "§7",
        "A source dies before it remembers a binding, and the broker is wiped.",
        test="tests/unit/console/run/test_run_request.py::"
        "test_a_command_starts_only_on_what_the_source_of_its_pod_remembers",
    ),
    Case("P-102", "§7", "The node is cordoned while the slice is being made.", ("pinned without a node check",)),
    Case(
        "P-103",
        "§7",
        "Another pod-watcher reads the declined `Bound` before the waiver.",
        ("pinned with a declined slice", "declined slice kept"),
    ),
    Case(
        "P-104",
        "§8",
        "A node is away longer than closing messages live, and its disk is wiped.",
        test="tests/unit/allocator/node/test_adopt.py::"
        "test_what_an_agent_has_not_read_to_be_closed_is_closed_again_when_it_comes_back",
    ),
    Case(
        "P-105",
        "§8",
        "An earlier run's last status lands late, and a lagging server shows the Grant.",
        test="tests/unit/node_agent/test_lost_journal.py::test_a_slice_that_was_closed_already_is_not_handed_out_again",
    ),
    Case(
        "P-106",
        "§8",
        "An agent republishes its slice after a wipe, and loses its disk before adoption.",
        ("statuses without entry stay",),
    ),
    Case(
        "P-107",
        "§8",
        "A binding from before a wipe lands when its slice is gone.",
        test="tests/unit/allocator/request/test_lost_slices.py::"
        "test_a_binding_that_landed_after_a_wipe_does_not_stand_for_ever",
    ),
    Case(
        "P-108",
        "§8",
        "A lagging server serves the reading that would prove a binding lost.",
        ("binding lost by one lagging reading",),
    ),
    Case(
        "P-109",
        "§8",
        "A late binding lands while its slice, unknown to its source, exists.",
        ("late binding released unadopted", "outdated binding names no slice"),
    ),
    Case(
        "P-110",
        "§8",
        "The source's first request lands too, naming a surplus slice.",
        ("slice unfound behind a gone binding",),
    ),
    Case(
        "P-111",
        "§8",
        "STATE forgets the last message of an ended pod whose object remains.",
        ("request closed once only",),
    ),
    Case("P-112", "§9", "Two allocators work all the time.", ("two binds", "surplus kept", "nothing taken back")),
    Case(
        "P-113",
        "§9",
        "One of two allocators has not read a preemptor's grant.",
        test="tests/simulation/schedules/allocator/test_two_allocators.py::"
        "test_a_pod_is_not_told_to_go_and_to_stay_in_turn_at_the_speed_of_the_bus",
    ),
    Case(
        "P-114",
        "§9",
        "A paused pod-watcher holds a binding from before a wipe.",
        test="tests/integration/test_kube_watch.py::test_a_watcher_whose_lease_has_run_out_writes_to_no_pod",
    ),
    Case(
        "P-115",
        "§7",
        "A kubelet prepares a claim, and the agent dies before or after its answer.",
        ("prepared claims not noted", "Prepare waits for ever", "one answer to two calls"),
    ),
    Case(
        "P-116",
        "§7",
        "CDI files are lost, at a reboot or without.",
        ("journal trusted for CDI files", "CDI files not compared", "CDI file removed when read"),
    ),
    Case(
        "P-117",
        "§7",
        "Unprepare is late or lost, and a process opens its device late.",
        ("only Unprepare frees", "processes of claims not looked for", "other pods of a claim not looked for"),
    ),
    Case(
        "P-118",
        "§7",
        "Two allocators grant one claim on one node.",
        test="tests/unit/node_agent/test_hand_over.py::test_a_claim_of_two_slices_is_prepared_when_one_is_left",
    ),
    Case(
        "P-119",
        "§7",
        "A claim loses its reservation or is deleted while its pod waits.",
        test="tests/simulation/schedules/test_kube.py::test_the_judge_catches_a_bug_about_clusters",
    ),
)
