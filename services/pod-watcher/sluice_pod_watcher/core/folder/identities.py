"""Map each document of each file to its request, for as long as the document exists. A request's id must outlive this
process and the broker (a running pod's node knows it by that id), but not the document (a recreated file is a new pod).
So the records are kept on disk, and each change is saved before it is published (`saved`)."""

from collections.abc import Iterable
from dataclasses import replace

from sluice.contracts.ids import RequestId, RunId
from sluice.contracts.messages import Held, WithdrawCause
from sluice_pod_watcher.core.folder.events import IdentityRecord, RequestRevision, SaveIdentities

ASKS_MAX = 8  # how many of the last revisions are remembered, to match an answer to its revision
DocumentKey = tuple[str, str]  # file and document


class Identities:
    """Every record that is not closed yet. At most one active record per document."""

    def __init__(self, run: RunId) -> None:
        self._run = run
        self._number = 0
        self._records: dict[RequestId, IdentityRecord] = {}
        self._living: dict[DocumentKey, RequestId] = {}
        self._changed_in: dict[RequestId, int] = {}  # the version of the book that first has the present record
        self._version = 0
        self._saved = 0
        self._saving = False

    def __contains__(self, uid: object) -> bool:
        return uid in self._records

    def get(self, uid: RequestId) -> IdentityRecord | None:
        return self._records.get(uid)

    def all(self) -> tuple[IdentityRecord, ...]:
        return tuple(self._records.values())

    def living(self) -> tuple[IdentityRecord, ...]:
        return tuple(record for record in self._records.values() if record.ended is None)

    def at(self, place: DocumentKey) -> IdentityRecord | None:
        uid = self._living.get(place)
        return self._records[uid] if uid is not None else None

    def is_saved(self, uid: RequestId) -> bool:
        return self._changed_in.get(uid, 0) <= self._saved

    def load(self, records: Iterable[IdentityRecord]) -> None:
        """Take over what a predecessor saved. Of two active records for one document the later one counts."""
        for record in records:
            self._put(record)
        self._changed_in.clear()
        self._version = self._saved

    def begin(self, place: DocumentKey, namespace: str, name: str, ask: RequestRevision) -> IdentityRecord:
        self._number += 1
        uid = RequestId(f"{self._run}-{self._number}")
        return self._put(IdentityRecord(uid, *place, namespace, name, (ask,)))

    def adopt(self, record: IdentityRecord) -> None:
        self._put(record)

    def say(self, uid: RequestId, ask: RequestRevision) -> IdentityRecord:
        record = self._records[uid]
        return self._put(replace(record, asks=(*record.asks, ask)[-ASKS_MAX:]))

    def hold(self, uid: RequestId, held: Held) -> IdentityRecord:
        return self._put(replace(self._records[uid], held=held))

    def end(self, uid: RequestId, cause: WithdrawCause) -> IdentityRecord:
        record = self._records[uid]
        return record if record.ended is not None else self._put(replace(record, ended=cause))

    def drop(self, uid: RequestId) -> None:
        record = self._records.pop(uid)
        self._vacate(record)
        self._version += 1
        self._changed_in.pop(uid, None)

    def _put(self, record: IdentityRecord) -> IdentityRecord:
        place = (record.file, record.document)
        known = self._records.get(record.uid)
        if known is not None:
            self._vacate(known)
        if record.ended is None:
            other = self._living.get(place)
            if other is not None and other != record.uid:
                self.end(other, "pod gone")
            self._living[place] = record.uid
        self._records[record.uid] = record
        self._version += 1
        self._changed_in[record.uid] = self._version
        return record

    def _vacate(self, record: IdentityRecord) -> None:
        place = (record.file, record.document)
        if self._living.get(place) == record.uid:
            del self._living[place]

    def save(self) -> list[SaveIdentities]:
        """The instruction to save what changed, unless one is under way."""
        if self._saving or self._version == self._saved:
            return []
        self._saving = True
        return [SaveIdentities(self._version, self.all())]

    def saved(self, version: int) -> None:
        self._saving = False
        self._saved = max(self._saved, version)
        for uid in [uid for uid, changed_in in self._changed_in.items() if changed_in <= self._saved]:
            del self._changed_in[uid]
