"""Feeds the recorder: follows HISTORY from where its file ends, looks at the nodes every minute, and saves each minute.
HISTORY holds a week. What it lost with a broker is found by snapshots of nodes and what sources publish again."""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager

from sluice.contracts.bus import codec, subjects
from sluice.contracts.slice_usage import NodeUsage
from sluice.runtime import bus, logs, retry
from sluice.runtime.clock import Clock
from sluice.runtime.nats.history import HistoryRecord, NatsHistory
from sluice_inventory.core.inventory import Inventory
from sluice_inventory.recorder.usage_recorder import CONFIRM_S, MINUTE_S, MinuteRecord, Running, UsageRecorder, Waiting
from sluice_inventory.recorder.usage_store import Position, UsageFileError, UsageStore

FILTERS = tuple(f"{subjects.HISTORY_PREFIX}sluice.{kind}.>" for kind in ("request", "binding", "ledger", "inventory"))
"""What matters of HISTORY."""
LATE_S = 2.0  # a minute is closed so long after its end: copies that are under way belong to it
RECENT_S = 120.0
"""Nodes are looked at for minutes that ended within this; older ones are caught up with from HISTORY alone."""
SAVE_AGAIN_MAX_S = 10.0  # longest pause between two tries to save, on a full disk for one
IDLE_S = 1800.0  # a slice that nothing has used for so long counts as idle

UsageNow = Callable[[], Mapping[str, NodeUsage]]  # the latest usage of the nodes that answer


class HistoryFollower:
    """One recorder with its file. Run `run` in a task."""

    def __init__(
        self,
        store: UsageStore,
        core: Inventory,
        clock: Clock,
        opening: Callable[[], AbstractAsyncContextManager[NatsHistory]],
        *,
        usage: UsageNow,
        recent: Callable[[MinuteRecord], None],
    ) -> None:
        """`core` knows the nodes, `usage` what agents measured last; `recent` takes each minute that ended just now.
        Raises UsageFileError."""
        self._store, self._core, self._clock, self._opening, self._usage = store, core, clock, opening, usage
        self._recent = recent
        self._log = logs.get("recorder")
        found = store.position()
        self._position = found or Position("", 0, int(time.time()) // MINUTE_S * MINUTE_S)
        self._is_new = found is None
        self._recorder = UsageRecorder(self._position.minute)
        self._recorder.resume(store.open_pods(), store.open_requests())
        self._confirm_by: float | None = None

    async def run(self) -> None:
        """Follow until cancelled."""
        backoff = retry.Backoff()
        while True:
            try:
                async with self._opening() as history:
                    await self._follow(history)
            except bus.BusError as error:
                self._log.warning("the history cannot be read", why=str(error))
            await self._clock.sleep(backoff.next_s())

    async def _follow(self, history: NatsHistory) -> None:
        created = await history.created()
        if created != self._position.stream_created:
            self._log.info("begins", history=created, minute=self._position.minute)
            self._recorder.doubt_waiting()
            self._confirm_by = time.time() + CONFIRM_S
            # Sequences of a new life begin at its creation in unix ms: above all earlier ones.
            self._position = self._position._replace(stream_created=created)
        after = self._position.sequence or None
        async for batch in history.read(filters=FILTERS, after=after, follow=True):
            for record in batch:
                await self._take_in(record)
            if not batch:
                await self._complete(time.time() - LATE_S)

    async def _take_in(self, record: HistoryRecord) -> None:
        if self._is_new:  # a first start: HISTORY says what there was before
            self._is_new = False
            self._recorder.minute = int(record.stored_at) // MINUTE_S * MINUTE_S
        await self._complete(record.stored_at)
        self._position = self._position._replace(sequence=record.sequence)
        if not isinstance(record.envelope, codec.Undecodable):
            self._recorder.observe(record.envelope.message, record.envelope.request, record.stored_at)

    async def _complete(self, until: float) -> None:
        recorder = self._recorder
        while recorder.minute + MINUTE_S <= until:
            end = recorder.minute + MINUTE_S
            is_recent = time.time() - end < RECENT_S
            if is_recent:
                self._look_at_nodes(float(end))
            if self._confirm_by is not None and end > self._confirm_by:
                self._confirm_by = None
                recorder.end_unconfirmed(float(end))
            minute = recorder.complete_minute()
            await self._save(minute)
            if is_recent:
                self._recent(minute)

    async def _save(self, minute: MinuteRecord) -> None:
        recorder = self._recorder
        changed: dict[tuple[str, str], Running | Waiting | None] = {}
        for kind, key in recorder.changed:
            changed[kind, key] = (recorder.running if kind == "running" else recorder.waiting).get(key)
        recorder.changed.clear()
        self._position = self._position._replace(minute=recorder.minute)
        backoff = retry.Backoff(max_s=SAVE_AGAIN_MAX_S)
        is_told = False
        while True:
            try:
                return await asyncio.to_thread(self._store.save, minute, changed, self._position)
            except UsageFileError as error:  # the minute is kept, and HISTORY has what comes meanwhile
                if not is_told:
                    self._log.warning("cannot save; trying until it can", why=str(error))
                    is_told = True
            await self._clock.sleep(backoff.next_s())

    def _look_at_nodes(self, at: float) -> None:
        booked: dict[str, set[str]] = {}
        names = self._core.names()
        for name in names:
            view = self._core.view(name)
            inventory = view.inventory if view is not None else None
            if inventory is not None:
                self._recorder.observe_node(inventory, at)
                if not inventory.stale:
                    booked[name] = {str(each.booking.allocation) for each in inventory.snapshot.slices}
        self._recorder.forget_nodes(names, at)
        self._recorder.end_missing(booked, at)
        for usage in self._usage().values():
            self._add_use(usage)

    def _add_use(self, usage: NodeUsage) -> None:
        """A device's part of the time in which kernels ran; the pod's devices count alike."""
        counts: dict[str, int] = {}
        for each in usage.slices:
            counts[each.allocation] = counts.get(each.allocation, 0) + 1
        for each in usage.slices:
            pod = self._recorder.running.get(each.allocation)
            if pod is None or pod.node != usage.node:
                continue
            is_idle = each.idle_s is not None and each.idle_s >= IDLE_S
            for model, amount in pod.amounts.items():
                part = amount.micro_gpus // counts[each.allocation]
                if is_idle:
                    self._recorder.add_use(pod.namespace, pod.node, model, micro_gpus=part, is_idle=True)
                elif each.busy_percent is not None:
                    used = round(part * min(each.busy_percent, 100.0) / 100)
                    self._recorder.add_use(pod.namespace, pod.node, model, micro_gpus=used, is_idle=False)
