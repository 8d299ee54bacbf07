"""What a team lead reads next week: GPU hours and waits, whatever happened to the recorder or the broker meanwhile."""

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from factories.inventory import NODE, gpu_report, known
from factories.scheduling.allocator import asked
from factories.words import booking_of
from msgspec.structs import replace
from structlog.testing import capture_logs

from sluice.contracts import messages as msg
from sluice.contracts.ids import AllocationId, GpuUuid, Incarnation, RequestId, RunId, SourceName
from sluice.runtime.clock import SystemClock
from sluice.runtime.nats.history import HistoryRecord
from sluice.runtime.prometheus.metrics import SERIES_MAX
from sluice_inventory.core.inventory import Inventory
from sluice_inventory.core.node import InventoryConfig
from sluice_inventory.recorder.amounts import Amount
from sluice_inventory.recorder.history_follower import HistoryFollower
from sluice_inventory.recorder.usage_recorder import CONFIRM_S, MINUTE_S, MinuteRecord, Series, UsageRecorder
from sluice_inventory.recorder.usage_report import NothingRecordedError, report
from sluice_inventory.recorder.usage_store import Kept, Position, UsageFileError, UsageStore
from sluice_inventory.shell.metrics import UseMetrics

BEGIN = 1_800_000_000 // 900 * 900
MODEL = "NVIDIA A100-SXM4-40GB"
WHOLE = msg.DeviceGrant(container="main", gpu=GpuUuid("GPU-1"), profile=None, start=0, size=8)
HALF = replace(WHOLE, profile="3g.20gb", size=4)
SHARE = replace(WHOLE, share=msg.Share(mode="mps", uid=1000, memory_mib=10240))
GPUS_OF = {HALF: 0.5, WHOLE: 1.0, SHARE: 0.25}


def grant(pod: str, device: msg.DeviceGrant = HALF, namespace: str = "lab") -> msg.Grant:
    booking = booking_of(f"{pod}-a", NODE, (device,), request=RequestId(pod), namespace=namespace)
    return msg.Grant(revision=1, incarnation=Incarnation("1"), booking=booking)


def closed(pod: str) -> msg.Closed:
    return msg.Closed(revision=2, allocation=AllocationId(f"{pod}-a"), request=RequestId(pod), node=NODE, cause="gone")


def bound(pod: str) -> msg.Bound:
    about = {"request": RequestId(pod), "request_revision": 1, "allocation": AllocationId(f"{pod}-a"), "node": NODE}
    return msg.Bound(**about, revision=1, ticket="t", containers=())


def asks(pod: str, namespace: str = "default"):
    return replace(asked(pod, msg.Claim(container="main", profile="3g.20gb")), namespace=namespace)


class Recording:
    """A recorder with its file; `stopped` kills it, and starts the next one from what the file has."""

    def __init__(self, path: Path, kept: Kept = Kept()) -> None:  # noqa: B008 - immutable
        self.path = path
        self.kept = kept
        self.log: list[tuple[float, object, str]] = []
        self._start()

    def _start(self) -> None:
        self.store = UsageStore(self.path, self.kept)
        found = self.store.position() or Position("life-1", 0, BEGIN)
        self.recorder = UsageRecorder(found.minute)
        self.recorder.resume(self.store.open_pods(), self.store.open_requests())
        self.recorder.observe_node(known(), float(found.minute))
        self.sequence = found.sequence

    def killed(self) -> None:
        """The next one continues from the file, and reads the history from there."""
        self.store.close()
        self._start()
        for at, message, request in self.log[self.sequence :]:
            self._observe(message, request, at)

    def hear(self, message: object, request: str, at: float) -> None:
        """The server stores a message, and the recorder reads it."""
        self.log.append((at, message, request))
        self._observe(message, request, at)

    def _observe(self, message: object, request: str, at: float) -> None:
        self.until(at)
        self.sequence += 1
        self.recorder.observe(message, request, at)

    def until(self, at: float) -> None:
        recorder = self.recorder
        while recorder.minute + MINUTE_S <= at:
            minute = recorder.complete_minute()
            open_ = {"running": recorder.running, "waiting": recorder.waiting}
            changed = {(kind, key): open_[kind].get(key) for kind, key in recorder.changed}
            recorder.changed.clear()
            self.store.save(minute, changed, Position("life-1", self.sequence, recorder.minute))

    def rows(self, by="", start: int = BEGIN, end: int = BEGIN + 10**7, **options):
        return {row.key: row for row in report(self.path, start, end, by, **options)[1]}


@pytest.fixture
def recording(tmp_path) -> Recording:
    return Recording(tmp_path / "usage.db")


@pytest.mark.parametrize("seed", range(4))
def test_hours_are_what_an_independent_count_of_the_history_says(recording, seed):
    """Hundreds of pods, and a recorder that is killed now and then: nothing counts twice or is missing."""
    rng = random.Random(seed)
    hours: dict[str, float] = defaultdict(float)
    pods: dict[str, int] = defaultdict(int)
    stored = []
    for number in range(300):
        asks_at = BEGIN + rng.uniform(0, 8 * 3600)
        granted_at = asks_at + rng.expovariate(1 / 20)
        ended_at = granted_at + rng.expovariate(1 / 3600)
        pod, device, namespace = f"p{number}", rng.choice(list(GPUS_OF)), rng.choice(("lab", "prod"))
        stored += [(asks_at, asks(pod, namespace), pod), (granted_at, grant(pod, device, namespace), pod)]
        stored += [(granted_at + 0.4, bound(pod), pod), (ended_at + 0.4, closed(pod), pod)]
        hours[namespace] += GPUS_OF[device] * (ended_at + 0.4 - granted_at) / 3600
        pods[namespace] += 1
    stored.sort(key=lambda each: each[0])
    for at, message, pod in stored:
        recording.hear(message, pod, at)
        if rng.random() < 0.02:
            recording.killed()
    recording.until(at + MINUTE_S)
    rows = recording.rows("namespace")
    for namespace, expected in hours.items():
        assert rows[namespace].gpu_hours == pytest.approx(expected, rel=0.001)
    assert {key: row.bound for key, row in rows.items() if row.bound} == pods
    total = recording.rows()[""]
    assert total.gpu_hours == pytest.approx(sum(row.gpu_hours for row in rows.values()), rel=1e-9)
    assert recording.rows("node")[NODE].gpu_hours == total.gpu_hours
    assert recording.rows("model")[MODEL].hours("capacity") == pytest.approx((recording.recorder.minute - BEGIN) / 3600)


def test_a_lead_reads_the_same_after_minutes_became_quarters(tmp_path):
    """Minutes are dropped after two days; last week's use stays as it was."""
    recording = Recording(tmp_path / "usage.db", Kept(minutes_s=3600, quarters_s=86400))
    recording.hear(asks("p"), "p", BEGIN + 30)
    recording.hear(grant("p"), "p", BEGIN + 90)
    recording.hear(bound("p"), "p", BEGIN + 92)
    recording.until(BEGIN + 1800)
    before = recording.rows()[""]
    recording.until(BEGIN + 6 * 3600)
    after = recording.rows(end=BEGIN + 1800)[""]
    assert (after.gpu_hours, after.bound, after.wait_s(50)) == (before.gpu_hours, 1, before.wait_s(50))
    assert after.gpu_hours == pytest.approx(0.5 * (1800 - 90) / 3600)
    assert 62 <= after.wait_s(100) <= 62 * 1.1
    recording.until(BEGIN + 30 * 3600)
    assert recording.rows(start=BEGIN)[""].gpu_hours == pytest.approx(0.5 * 24.0, rel=0.02), "older ones are dropped"


def test_a_resized_share_counts_with_its_new_size_from_then_on(recording):
    for device, at in ((SHARE, BEGIN), (WHOLE, BEGIN + 1800)):
        recording.hear(grant("p", device), "p", at)
        recording.hear(bound("p"), "p", at + 1)
    recording.until(BEGIN + 3600)
    row = recording.rows("namespace")["lab"]
    assert row.gpu_hours == pytest.approx(0.25 / 2 + 1.0 / 2)
    assert (row.bound, row.by_model.keys()) == (1, {MODEL})


def test_pods_that_ended_while_the_broker_was_lost_do_not_count_on(recording):
    """Their last messages are in no history: the node's snapshot shows that the slice is gone."""
    recording.hear(grant("lost"), "lost", BEGIN)
    recording.hear(grant("kept"), "kept", BEGIN)
    recording.until(BEGIN + 600)
    recording.recorder.end_missing({NODE: {"kept-a"}}, BEGIN + CONFIRM_S / 2)
    assert set(recording.recorder.running) == {"lost-a", "kept-a"}, "an agent may not have read its order yet"
    recording.recorder.end_missing({}, BEGIN + 2 * CONFIRM_S)
    assert set(recording.recorder.running) == {"lost-a", "kept-a"}, "a node that does not answer ends nothing"
    recording.recorder.end_missing({NODE: {"kept-a"}}, BEGIN + 2 * CONFIRM_S)
    assert set(recording.recorder.running) == {"kept-a"}


def test_requests_of_a_lost_history_stop_waiting_unless_they_show_themselves(recording):
    """Otherwise a pod deleted meanwhile would wait on every report from then on."""
    for pod in ("gone", "there"):
        recording.hear(asks(pod), pod, BEGIN)
    recording.recorder.doubt_waiting()
    recording.hear(asks("there"), "there", BEGIN + 60)
    recording.recorder.end_unconfirmed(BEGIN + 120)
    assert set(recording.recorder.waiting) == {"there"}
    recording.hear(msg.RequestWithdrawn(revision=2, source=SourceName("s"), cause="pod gone"), "there", BEGIN + 180)
    recording.until(BEGIN + 300)
    row = recording.rows("namespace")["default"]
    assert (row.waiting_pods_s, row.bound) == (120 + 180, 0)


def test_a_grant_that_is_stored_before_its_request_counts_as_bound_and_waits_for_nothing(recording):
    recording.hear(grant("p"), "p", BEGIN + 1)
    recording.hear(asks("p"), "p", BEGIN + 2)
    recording.hear(bound("p"), "p", BEGIN + 3)
    recording.until(BEGIN + 60)
    assert not recording.recorder.waiting
    assert recording.rows("namespace")["lab"].bound == 1


def test_use_and_idleness_are_parts_of_what_was_granted(recording):
    recording.hear(grant("p"), "p", BEGIN)
    recording.recorder.add_use("lab", NODE, MODEL, micro_gpus=200_000, is_idle=False)
    recording.recorder.add_use("lab", NODE, MODEL, micro_gpus=300_000, is_idle=True)
    recording.until(BEGIN + 60)
    row = recording.rows("namespace")["lab"]
    assert (row.hours("used"), row.hours("idle")) == (pytest.approx(0.2 / 60), pytest.approx(0.3 / 60))
    points = recording.rows("namespace", points=True)["lab"].points
    assert points == {BEGIN: {"allocated": 500_000 * 60, "used": 200_000 * 60, "idle": 300_000 * 60}}


def test_a_gpu_that_left_is_no_capacity_any_more(recording):
    recording.until(BEGIN + 60)
    recording.recorder.forget_nodes([], BEGIN + 60)
    recording.until(BEGIN + 3600)
    assert recording.rows("node")[NODE].hours("capacity") == pytest.approx(1 / 60)


@pytest.mark.parametrize("start", [BEGIN + 10**6, BEGIN - 10**6])
def test_a_time_without_records_is_refused_with_what_there_is(recording, start):
    with pytest.raises(NothingRecordedError, match="nothing is recorded yet"):
        recording.rows()
    recording.until(BEGIN + 120)
    with pytest.raises(NothingRecordedError, match="recorded is from 20"):
        recording.rows(start=start, end=start + 60)


def test_a_file_that_is_not_the_recorders_is_named(tmp_path):
    (tmp_path / "usage.db").write_text("not a database, but long enough to be taken for one " * 40)
    with pytest.raises(UsageFileError, match=r"usage\.db cannot be used: file is not a database"):
        UsageStore(tmp_path / "usage.db")


def record(sequence: int, message: msg.AnyMessage, request: str, at: float) -> HistoryRecord:
    envelope = msg.Envelope(id="e", operation="o", request=request, schema=1, time="", message=message)
    return HistoryRecord("", sequence, envelope, {}, at)


class PlayedHistory:
    """HISTORY as a follower reads it. `is_read` is set when it asks for more than there is."""

    def __init__(self, records: list[HistoryRecord]) -> None:
        self._records = records
        self.is_read = asyncio.Event()

    async def created(self) -> str:
        return "life-1"

    async def read(self, **_) -> AsyncIterator[list[HistoryRecord]]:
        yield self._records
        self.is_read.set()
        await asyncio.Future()


async def test_a_full_disk_delays_the_record_and_loses_nothing_of_it(recording, tmp_path):
    """The inventory would end with its recorder, and with it the page; or a team's hours would be another's."""
    recording.hear(grant("before"), "before", BEGIN)
    recording.until(BEGIN + 60)
    database = recording.store._db
    (pages,) = database.execute("PRAGMA page_count").fetchone()
    database.execute(f"PRAGMA max_page_count = {pages}")
    pauses_s: list[float] = []

    class Freeing(SystemClock):
        """At the third pause an operator frees the disk."""

        async def sleep(self, duration_s: float) -> None:
            pauses_s.append(duration_s)
            if len(pauses_s) == 3:
                database.execute("PRAGMA max_page_count = 100000")

    messages = [(grant(f"p{n}", WHOLE, f"team-{n:03}"), f"p{n}", BEGIN + 60.0) for n in range(200)]
    messages.append((asks("late"), "late", BEGIN + 180.0))
    history = PlayedHistory([record(2 + at, *each) for at, each in enumerate(messages)])
    inventory = Inventory(RunId("i"), InventoryConfig())
    follower = HistoryFollower(
        recording.store, inventory, Freeing(), lambda: nullcontext(history), usage=dict, recent=lambda _: None
    )
    with capture_logs() as logged:
        following = asyncio.create_task(follower.run())
        async with asyncio.timeout(30):
            await history.is_read.wait()
        following.cancel()
        await asyncio.wait({following})
    (warning,) = (each for each in logged if each["log_level"] == "warning")
    assert warning["event"] == "cannot save; trying until it can"
    assert warning["why"] == "the usage file cannot be written: database or disk is full"
    assert len(pauses_s) == 3
    rows = recording.rows("namespace")
    assert [rows[f"team-{n:03}"].gpu_hours for n in range(200)] == [pytest.approx(2 / 60)] * 200
    assert rows["lab"].gpu_hours == pytest.approx(0.5 * 3 / 60)


def test_profiles_without_a_size_count_by_their_slices(recording):
    recording.recorder.observe_node(known(gpus=(gpu_report(memory_mib=40960),)), BEGIN)
    recording.hear(grant("p"), "p", BEGIN)
    recording.until(BEGIN + 60)
    assert recording.rows("namespace")["lab"].memory_mib_s == 20480 * 60


def test_a_lead_sees_over_time_what_the_report_sums_up():
    """A chart by team would show another use than the report, or teams that are gone would fill the memory."""
    recorder, shown = UsageRecorder(BEGIN), UseMetrics()
    recorder.observe_node(known(), float(BEGIN))
    recorder.observe(asks("waits", "prod"), "waits", BEGIN + 30.0)
    recorder.observe(grant("p1"), "p1", BEGIN + 30.0)
    recorder.add_use("lab", NODE, MODEL, micro_gpus=200_000, is_idle=False)
    shown.add(recorder.complete_minute())
    shown.add(recorder.complete_minute())
    assert {(each.metric.name, *each.labels): each.value for each in shown.now()} == {
        ("sluice_namespace_gpu_seconds_total", "lab", MODEL): 0.5 * 90,
        ("sluice_namespace_gpu_used_seconds_total", "lab", MODEL): 0.2 * 60,
        ("sluice_namespace_waiting", "prod"): 1.0,
    }
    for number in range(2 * SERIES_MAX):
        shown.add(MinuteRecord(BEGIN, {Series("allocated", f"ci-{number}", "", MODEL): Amount(60, 1, 1)}, []))
    assert len(list(shown.now())) <= SERIES_MAX
