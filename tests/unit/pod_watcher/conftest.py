"""A pod-watcher driven by hand: the test is the folder, the disk and the bus."""

import itertools
from dataclasses import dataclass, field

import pytest

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Entry, Observed, ReadingCaughtUp, ReadingStarted, Stream, Write, WriteAccepted
from sluice.contracts.bus.subjects import Address
from sluice.contracts.ids import AllocationId, Incarnation, NodeName, OperationId, RequestId, RunId
from sluice.contracts.messages import AnyMessage, Bound, ContainerDevices, Refused, Released
from sluice.contracts.reasons import Refusal, RefusalReason
from sluice_pod_watcher.core.folder import events as folder_events
from sluice_pod_watcher.core.folder.watcher import FolderWatcher

POD = """\
apiVersion: v1
kind: Pod
metadata:
  name: {name}
  annotations:
{annotations}
spec:
  containers:
{containers}
"""


def pod(name: str, *, containers: tuple[str, ...] = ("main",), **keys: str) -> str:
    """A manifest; `keys` are our annotations with `_` for `-`. A 1g.5gb unless said otherwise."""
    said = {key.replace("_", "-"): value for key, value in (keys or {"profile": "1g.5gb"}).items()}
    return POD.format(
        name=name,
        annotations="\n".join(f'    sluice.dev/{key}: "{value}"' for key, value in said.items()),
        containers="\n".join(f"    - name: {container}" for container in containers),
    )


@dataclass
class Bench:
    """Drives one pod-watcher. What it saves is on disk at once, what it writes lands."""

    watcher: FolderWatcher
    now: float = 100.0
    files: dict[str, str] = field(default_factory=dict)
    disk: tuple[folder_events.IdentityRecord, ...] = ()
    bus: dict[str, AnyMessage] = field(default_factory=dict)
    writes: list[Write] = field(default_factory=list)
    """Every write that landed, in order."""
    told: list[str] = field(default_factory=list)
    sequence: itertools.count = field(default_factory=lambda: itertools.count(1001))

    def step(self, event: folder_events.Event) -> list[folder_events.Instruction]:
        """One event in, its instructions out; nothing is carried out."""
        return self.watcher.handle(event, self.now)

    def handle(self, event: folder_events.Event) -> None:
        self.carry_out(self.step(event))

    def carry_out(self, waiting: list[folder_events.Instruction]) -> None:
        """Do what the pod-watcher says, and all that follows."""
        while waiting:
            instruction = waiting.pop(0)
            match instruction:
                case folder_events.SaveIdentities():
                    self.disk = instruction.records
                    waiting += self.step(folder_events.IdentitiesSaved(instruction.version))
                case folder_events.ListFolder():
                    waiting += self.step(self.listing())
                case Write():
                    waiting += self.land(instruction)
                case folder_events.WriteLogLine():
                    self.told.append(instruction.sentence)
                case _:
                    raise AssertionError(instruction)

    def land(self, write: Write) -> list[folder_events.Instruction]:
        self.writes.append(write)
        self.bus[write.subject] = write.message
        return self.step(WriteAccepted(write.operation, next(self.sequence)))

    def listing(self) -> folder_events.FolderListed:
        files = (folder_events.ManifestFile(name, text) for name, text in self.files.items())
        return folder_events.FolderListed(tuple(files))

    def read(self, *entries: tuple[Address, AnyMessage], incarnation: str = "1000") -> None:
        """Both streams are read again and hold exactly `entries`."""
        self.bus = {address.subject: message for address, message in entries}
        for stream in (Stream.BOOK, Stream.STATE):
            self.handle(ReadingStarted(stream, Incarnation(incarnation)))
        for address, message in entries:
            self.observe(address, message)
        for stream in (Stream.BOOK, Stream.STATE):
            self.handle(ReadingCaughtUp(stream))

    def observe(self, address: Address, message: AnyMessage, operation: str = "") -> None:
        stream = Stream.BOOK if address.kind == "binding" else Stream.STATE
        sequence = next(self.sequence)
        self.bus[address.subject] = message
        entry = Entry(address.subject, sequence, OperationId(operation or f"other-{sequence}"), message)
        self.handle(Observed(stream, entry))

    def list(self, after_s: float = 0.0) -> None:
        self.now += after_s
        self.handle(self.listing())

    def edit(self, file: str, text: str) -> None:
        """A file is written, and the folder listed."""
        self.files[file] = text
        self.list()

    def empty(self) -> None:
        """All files are deleted, and stay away for longer than an editor keeps one away."""
        self.files.clear()
        self.list()
        self.list(after_s=2)

    def start(self, *entries: tuple[Address, AnyMessage], disk: tuple[folder_events.IdentityRecord, ...] = ()) -> None:
        """From nothing to having read disk, bus and folder."""
        self.disk = disk
        self.read(*entries)
        self.handle(folder_events.IdentitiesLoaded(disk))

    def requests(self) -> dict[str, AnyMessage]:
        return self.said("request")

    def said(self, kind: str) -> dict[str, AnyMessage]:
        """The last messages of this kind, by their requests."""
        of_kind = [each for each in self.bus if each.startswith(f"sluice.{kind}.")]
        return {subject.rpartition(".")[2]: self.bus[subject] for subject in of_kind}

    def only(self) -> AnyMessage:
        (message,) = self.requests().values()
        return message

    def bound(self, uid: str, revision: int = 1, **said: tuple[str, ...]) -> None:
        """`said`: its warnings, and what it waives."""
        bound = Bound(
            request=RequestId(uid),
            request_revision=revision,
            allocation=AllocationId(f"{uid}_r_1"),
            node=NodeName("node-a"),
            revision=1,
            ticket="ticket-1",
            containers=(ContainerDevices(container="main", visible_devices="MIG-1"),),
            **said,
        )
        self.observe(subjects.binding(RequestId(uid)), bound)

    def released(self, uid: str) -> None:
        self.observe(subjects.binding(RequestId(uid)), Released(request=RequestId(uid), cause="pod gone"))

    def refused(self, uid: str, revision: int = 1) -> None:
        refusal = Refusal(reason=RefusalReason.UNKNOWN_PROFILE, message="no such profile")
        message = Refused(request=RequestId(uid), request_revision=revision, refusal=refusal)
        self.observe(subjects.binding(RequestId(uid)), message)


@pytest.fixture
def new():
    """Makes a pod-watcher that has read nothing yet; the run's name can be given."""

    def make(run: str = "w1", **config) -> Bench:
        rules = folder_events.FolderConfig(**{"gone_grace_s": 1.0, "closing_ttl_s": 3600, **config})
        return Bench(FolderWatcher(RunId(run), rules))

    return make


@pytest.fixture
def bench(new) -> Bench:
    """A pod-watcher that has read an empty disk, bus and folder."""
    made = new()
    made.start()
    made.writes.clear()
    return made


@pytest.fixture
def manifest():
    return pod
