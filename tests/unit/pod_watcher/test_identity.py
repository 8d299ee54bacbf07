"""A pod's identity: its request's id survives what the pod survives, and nothing else."""

from factories.words import write_of
from msgspec.structs import replace

from sluice.contracts.bus import events as bus
from sluice.contracts.bus import subjects
from sluice.contracts.ids import AllocationId, Incarnation, NodeName, OperationId, RequestId, RunId, SourceName
from sluice.contracts.messages import AllocationRequested, Claim, Held, RequestWithdrawn, SourceSynced
from sluice_pod_watcher.core.folder import events as folder_events

FOLDER = SourceName("folder")
SMALL = (Claim(container="main", profile="1g.5gb"),)
LARGE = (Claim(container="main", profile="3g.20gb"),)
REQUEST = subjects.request(RequestId("w1-1"))
GONE = RequestWithdrawn(revision=1, source=FOLDER, cause="pod gone")
HELD = Held(node=NodeName("node-a"), allocation=AllocationId("w1-1_r_1"))


def asked(uid: str, revision: int = 1, claims=SMALL, *, name: str = "a") -> AllocationRequested:
    """What the bus says of a pod of file `<name>.yaml`."""
    return AllocationRequested(
        revision=revision,
        source=FOLDER,
        namespace="default",
        name=name,
        origin=f"{name}.yaml",
        owner=uid,
        claims=claims,
        incarnation=Incarnation("1000"),
    )


def record(uid: str, claims=SMALL, revision: int = 1, *, name: str = "a", ended=None) -> folder_events.IdentityRecord:
    asks = (folder_events.RequestRevision(revision, claims),)
    return folder_events.IdentityRecord(RequestId(uid), f"{name}.yaml", f"default/{name}", "default", name, asks, ended)


def test_a_pod_is_asked_for_only_after_its_identity_is_on_disk(bench, manifest):
    """A crash in between would give a running pod a second name."""
    bench.files["a.yaml"] = manifest("a")
    saved = record("w1-1")
    assert bench.step(bench.listing()) == [
        folder_events.WriteLogLine("info", "default/a (a.yaml) asks for 1g.5gb", "w1-1"),
        folder_events.SaveIdentities(1, (saved,)),
    ]
    assert bench.step(bench.listing()) == []
    write = write_of(REQUEST, asked("w1-1"), None, "w1-2", request="w1-1")
    assert bench.step(folder_events.IdentitiesSaved(1)) == [write]
    source = subjects.source(FOLDER)
    synced = SourceSynced(source=FOLDER, run=RunId("w1"), epoch=3, count=1, incarnation=Incarnation("1000"))
    assert bench.land(write) == [write_of(source, synced, 1001, "w1-3")]


def test_a_wiped_broker_is_told_the_same_ids_again_and_then_that_it_is_all(bench, manifest):
    """Agents report slices by these ids; new ones would end what runs."""
    bench.files |= {"a.yaml": manifest("a"), "b.yaml": manifest("b", profile="3g.20gb")}
    bench.list()
    bench.writes.clear()
    bench.read(incarnation="2000")
    assert [(write.subject, write.expected) for write in bench.writes] == [
        ("sluice.request.w1-1", 0),
        ("sluice.request.w1-2", 0),
        ("sluice.source.folder", 0),
    ]
    assert [word.incarnation for word in bench.bus.values()] == ["2000"] * 3, "in which life all of it holds"
    assert bench.bus["sluice.source.folder"].count == 2


def test_a_pod_that_has_its_slice_is_not_moved_to_another_by_a_late_word(bench, manifest):
    """A binding of before the broker was wiped has landed late: what the pod runs on would be taken from it."""
    bench.edit("a.yaml", manifest("a"))
    bench.bound("w1-1")
    before, bound = bench.requests(), bench.bus["sluice.binding.w1-1"]
    late = replace(bound, allocation=AllocationId("w1-1_r_2"), node=NodeName("node-b"))
    bench.observe(subjects.binding(RequestId("w1-1")), late)
    assert bench.requests() == before
    assert bench.told[-1] == "default/a (a.yaml) keeps slice w1-1_r_1 on node-a: slice w1-1_r_2 was withdrawn"


def test_lost_identities_are_taken_from_the_bus(new, manifest):
    """A damaged disk alone does not disturb a running pod."""
    bench = new("w2")
    bench.files |= {"a.yaml": manifest("a"), "b.yaml": manifest("b")}
    bench.start(
        (REQUEST, asked("w1-1", revision=4)),
        (subjects.request(RequestId("gone-1")), asked("gone-1", name="gone")),
    )
    bench.list(after_s=2)
    assert bench.requests() == {"w1-1": asked("w1-1", revision=4), "w2-1": asked("w2-1", name="b"), "gone-1": GONE}


def test_a_pod_whose_priority_was_edited_as_it_was_granted_keeps_its_slice_when_identities_are_lost(new, manifest):
    """What it was granted for is not on the bus any more; it would lose what it runs on, and wait for another slice."""
    held = Held(node=NodeName("node-a"), allocation=AllocationId("old-1_r_1"))
    after = new()
    after.files["a.yaml"] = manifest("a")
    after.start((subjects.request(RequestId("old-1")), replace(asked("old-1", 2), held=held)))
    after.bound("old-1", 1)
    after.list(2.0)
    assert {uid: word.held for uid, word in after.requests().items()} == {"old-1": held}


def test_what_lands_late_under_another_id_takes_no_pods_place(new, manifest):
    """Whatever slice it names: what was on the bus when this process read it was read, so its pod has the other id."""
    bench = new("w2")
    bench.files["a.yaml"] = manifest("a")
    bench.start()
    (waits,) = [each.uid for each in bench.disk]
    word = replace(asked("w1-1"), held=HELD)
    instructions = bench.step(
        bus.Observed(bus.Stream.STATE, bus.Entry("sluice.request.w1-1", 1050, OperationId("w1-5"), word))
    )
    bench.carry_out([each for each in instructions if not isinstance(each, bus.ReadAgain)])
    assert [each.uid for each in bench.disk if each.ended is None] == [waits]
    assert isinstance(bench.requests()["w1-1"], RequestWithdrawn)


def test_the_bus_knows_a_newer_revision_than_a_restored_disk(new, manifest):
    """An old copy of the identities would make the next edit look old."""
    bench = new("w2")
    bench.files["a.yaml"] = manifest("a", profile="3g.20gb")
    bench.start((REQUEST, asked("w1-1", revision=7)), disk=(record("w1-1"),))
    assert bench.requests() == {"w1-1": asked("w1-1", revision=8, claims=LARGE)}


def test_other_sources_are_none_of_our_business(new):
    """Two sources on one bus do not withdraw each other's pods."""
    theirs = AllocationRequested(
        revision=1, source=SourceName("else"), namespace="n", name="x", origin="x", owner="x", claims=SMALL
    )
    bench = new()
    bench.start((subjects.request(RequestId("x-1")), theirs))
    bench.list(after_s=5)
    assert bench.requests() == {"x-1": theirs}


def test_a_removed_file_withdraws_its_pod_and_is_forgotten_when_all_is_closed(bench, manifest):
    """The slice comes back, and neither disk nor bus grow with history."""
    bench.edit("a.yaml", manifest("a"))
    del bench.files["a.yaml"]
    bench.list()
    assert bench.requests() == {"w1-1": asked("w1-1")}
    bench.now += 1.1
    bench.handle(bus.Ticked())
    assert bench.requests() == {"w1-1": GONE}
    assert bench.disk == (record("w1-1", ended="pod gone"),)
    bench.released("w1-1")
    closing = bench.writes[-1]
    assert (closing.message.closing, closing.ttl_s) == (True, 3600)
    bench.handle(bus.Ticked())
    assert bench.disk == ()
    before = len(bench.writes)
    bench.list(after_s=1)
    assert [write.subject for write in bench.writes[before:]] == ["sluice.source.folder"]


def test_closing_is_finished_after_a_restart(new):
    """A pod-watcher that dies in between leaves nothing behind."""
    bench = new("w2")
    bench.start((REQUEST, GONE), disk=(record("w1-1", ended="pod gone"),))
    bench.released("w1-1")
    assert bench.requests()["w1-1"].closing
    bench.handle(bus.Ticked())
    assert bench.disk == ()


def test_a_late_echo_of_our_own_word_brings_nothing_back(bench, manifest):
    """Reading is slower than writing; an old value does not reopen a closed request."""
    bench.edit("a.yaml", manifest("a"))
    bench.empty()
    bench.released("w1-1")
    bench.handle(bus.Ticked())
    entry = bus.Entry("sluice.request.w1-1", 1002, OperationId("w1-3"), GONE)
    assert bench.step(bus.Observed(bus.Stream.STATE, entry)) == []
    assert bench.disk == ()


def test_a_closing_word_that_the_broker_forgot_is_said_again(bench, manifest):
    """A killed broker may lose what it acknowledged last; the withdrawn request would stay for ever."""
    bench.edit("a.yaml", manifest("a"))
    bench.empty()
    withdrawn = bench.only()
    bench.released("w1-1")
    bench.handle(bus.Ticked())
    assert bench.disk == ()
    bench.bus["sluice.request.w1-1"] = withdrawn
    bench.handle(bus.ReadingStarted(bus.Stream.STATE, Incarnation("1000")))
    bench.handle(bus.Observed(bus.Stream.STATE, bus.Entry("sluice.request.w1-1", 1003, OperationId("w1-4"), withdrawn)))
    instructions = bench.step(bus.ReadingCaughtUp(bus.Stream.STATE))
    assert bus.ReadAgain(bus.Stream.BOOK) in instructions
    bench.carry_out([each for each in instructions if not isinstance(each, bus.ReadAgain)])
    bench.handle(bus.ReadingStarted(bus.Stream.BOOK, Incarnation("1000")))
    bench.released("w1-1")
    bench.handle(bus.ReadingCaughtUp(bus.Stream.BOOK))
    assert bench.requests()["w1-1"].closing
    bench.handle(bus.Ticked())
    assert bench.disk == ()


def test_an_editor_that_moves_the_file_away_for_a_moment_disturbs_nothing(bench, manifest):
    bench.edit("a.yaml", manifest("a"))
    bench.bound("w1-1")
    for text in (None, "", "apiVersion: v1\nkind: Pod\nmetadata: {", "apiVersion: v1\nkind: Pod\n"):
        bench.files = {} if text is None else {"a.yaml": text}
        bench.list(after_s=0.2)
    bench.files["a.yaml"] = manifest("a")
    bench.list(after_s=0.1)
    bench.list(after_s=5)
    assert bench.requests() == {"w1-1": replace(asked("w1-1"), held=HELD)}


def test_a_folder_that_cannot_be_listed_ends_nothing(bench, manifest):
    """An unmounted disk is no reason to take slices away."""
    bench.edit("a.yaml", manifest("a"))
    bench.now += 60
    gone = folder_events.FolderUnlistable("the folder /pods cannot be listed: gone")
    said = f"{gone.why}; its pods stay as they are until it can be listed"
    assert bench.step(gone) == [folder_events.WriteLogLine("warning", said)]
    assert bench.step(gone) == []
    assert bench.requests() == {"w1-1": asked("w1-1")}


def test_an_unreadable_file_ends_nothing_and_is_reported(bench, manifest):
    """A file with wrong permissions is said to be one, and its pod runs on."""
    bench.edit("a.yaml", manifest("a"))
    for _ in range(2):
        bench.now += 2
        bench.handle(folder_events.FolderListed((folder_events.ManifestFile("a.yaml", error="Permission denied"),)))
    said = bench.requests()
    assert said["w1-1"] == asked("w1-1")
    assert "Permission denied" in said["w1-2"].refusal.message


def test_two_pod_watchers_of_one_source_do_not_duel_at_the_speed_of_the_bus(bench, manifest):
    """A mistake in the set-up does not become a storm of writes."""
    bench.edit("a.yaml", manifest("a"))
    before = len(bench.writes)
    for _ in range(5):
        bench.observe(subjects.source(FOLDER), SourceSynced(source=FOLDER, run=RunId("rival"), epoch=1, count=0))
        bench.observe(REQUEST, asked("w1-1", claims=LARGE))
    assert bench.writes[before:] == []
    assert "another pod-watcher publishes as source 'folder'" in bench.told[-1]
    bench.list()
    assert bench.requests() == {"w1-1": asked("w1-1")}


def test_the_heartbeat_goes_on_and_counts_what_lives(bench, manifest):
    """The allocator revokes an orphan only when its source has published."""
    bench.files |= {"a.yaml": manifest("a"), "bad.yaml": manifest("bad", gpus="0")}
    bench.list()
    epochs = []
    for _ in range(3):
        bench.now += 6
        bench.handle(bus.Ticked())
        epochs.append((bench.bus["sluice.source.folder"].epoch, bench.bus["sluice.source.folder"].count))
    assert epochs == [(3, 1), (4, 1), (5, 1)]
