"""
Creates missing streams and agents' durables.

It never changes a configuration and never deletes: every guard depends on these settings. Two exceptions: the size of
HISTORY, and a durable of another incarnation than its stream's, requested before the streams were recreated.
"""

import time
from collections import Counter
from datetime import datetime
from typing import Any

from sluice.contracts.bus import streams
from sluice.contracts.bus.events import Stream
from sluice.contracts.bus.store_sizes import HISTORY_BYTES_MAX, MIB, state_bytes
from sluice.contracts.bus.subjects import node_from_token
from sluice.contracts.ids import Incarnation, NodeName
from sluice.runtime import logs
from sluice.runtime.bus import BusError
from sluice.runtime.nats import wire_format
from sluice.runtime.nats.connection import REQUEST_TIMEOUT_S, Connection

CLUSTER_REPLICAS = 3
_NO_SHAPE = ("first_seq", "max_bytes", "discard", "max_consumers")
"""Settings of one installation, or of its age: streams of 0.2 have no bounds of their own."""
SUBJECTS_GROWN = 5_000
"""So many new subjects in STATE, and each node's are counted."""
_NOT_YET = frozenset({10005, 10008, 10023, 10074})
"""JetStream's codes for a cluster without a leader or a quorum at the moment."""

_log = logs.get("streams")


async def ensure_streams(connection: Connection, *, history_bytes: int = HISTORY_BYTES_MAX) -> None:
    """Create missing streams of one life. Raises BusError (other settings, no room), TimeoutError (not ready)."""
    replicas = CLUSTER_REPLICAS if connection.clustered else 1
    first_sequence = time.time_ns() // 1_000_000
    for declaration in streams.STREAMS:
        wanted = declaration.config(first_sequence=first_sequence, replicas=replicas)
        if declaration.stream is Stream.HISTORY:
            wanted["max_bytes"] = history_bytes
        elif declaration.stream is Stream.STATE:
            wanted["max_bytes"] = state_bytes(history_bytes)
        await _ensure_stream(connection, declaration, wanted)


async def _ensure_stream(
    connection: Connection, declaration: streams.StreamDeclaration, wanted: dict[str, Any]
) -> None:
    found = await _info(connection, declaration.stream)
    if found is None:
        try:
            made = await connection.ask(f"STREAM.CREATE.{declaration.stream}", wanted, timeout_s=REQUEST_TIMEOUT_S)
        except wire_format.ApiError as error:
            if error.err_code != wire_format.STREAM_IN_USE:
                raise _not_made(error, wanted) from error
            found = await _info(connection, declaration.stream)  # another process was first
        else:
            _log.info("stream made", stream=declaration.stream.value, first_sequence=wanted["first_seq"])
            _refuse_older(declaration.stream, made)
    if found is not None:
        _refuse_older(declaration.stream, found)
        _compare(f"stream {declaration.stream}", wanted, found["config"], but=_NO_SHAPE)


async def resize_history(connection: Connection, history_bytes: int) -> None:
    """Change HISTORY's size limit, at a broker without users: ours may not STREAM.UPDATE. Raises BusError (no room)."""
    found = await _info(connection, Stream.HISTORY)
    if found is None or found["config"].get("max_bytes") == history_bytes:
        return
    wanted = {**found["config"], "max_bytes": history_bytes}
    try:
        await connection.ask(f"STREAM.UPDATE.{Stream.HISTORY}", wanted, timeout_s=REQUEST_TIMEOUT_S)
    except wire_format.ApiError as error:
        raise _not_made(error, wanted) from error
    _log.info("HISTORY has another size", bytes=history_bytes, before=found["config"].get("max_bytes"))


async def unstored_s(connection: Connection, stream: Stream) -> float | None:
    """How long nothing was stored, by the broker's clock; None: it is empty. Raises TimeoutError, BusError."""
    found = await _info(connection, stream)
    if found is None or not found["state"]["messages"]:
        return None
    now, last = (datetime.fromisoformat(each) for each in (found["ts"], found["state"]["last_ts"]))
    return max(0.0, (now - last).total_seconds())


async def stream_problems(connection: Connection) -> list[str]:
    """Differences from the declarations, for people, a sentence each. Raises TimeoutError, BusError."""
    replicas = CLUSTER_REPLICAS if connection.clustered else 1
    problems = []
    for declaration in streams.STREAMS:
        found = await _info(connection, declaration.stream)
        if found is None:
            problems.append(f"there is no stream {declaration.stream}")
            continue
        try:
            wanted = declaration.config(first_sequence=0, replicas=replicas)
            _compare(f"stream {declaration.stream}", wanted, found["config"], but=_NO_SHAPE)
            _refuse_older(declaration.stream, found)
        except BusError as error:
            problems.append(str(error))
        if declaration.max_bytes > 0 >= found["config"].get("max_bytes", -1):
            problems.append(
                f"the stream {declaration.stream} has no size limit, so one node agent could fill the disk: an older "
                "release made it. Start the broker with an empty disk when it suits (docs/operations.md#backup)"
            )
    return problems


class AgentsShare:
    """Removes the statuses of an agent that fills STATE; bookings are in BOOK, and a sound agent publishes again."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._counted = 0
        """How many subjects STATE had when nodes were last counted."""

    async def enforce(self) -> None:
        """Count where STATE is half full or has grown. Raises TimeoutError, BusError."""
        found = await _info(self._connection, Stream.STATE)
        if found is None:
            return
        state, limit = found["state"], found["config"].get("max_bytes", -1)
        subjects = state.get("num_subjects", 0)
        self._counted = min(self._counted, subjects)
        if subjects < self._counted + SUBJECTS_GROWN and not 0 < limit < 2 * state["bytes"]:
            return
        self._counted = subjects
        for node, count in (await self._slices()).items():
            if count > streams.SLICES_PER_NODE_MAX:
                body = {"filter": f"sluice.slice.{node}.>"}
                await self._connection.ask(f"STREAM.PURGE.{Stream.STATE}", body, timeout_s=REQUEST_TIMEOUT_S)
                _log.error(
                    "removed the slice statuses of a node: its agent wrote too many",
                    node=node_from_token(node),
                    statuses=count,
                    limit=streams.SLICES_PER_NODE_MAX,
                )

    async def _slices(self) -> Counter[str]:
        counts: Counter[str] = Counter()
        offset, total = 0, 1
        while offset < total:
            body = {"subjects_filter": "sluice.slice.>", "offset": offset}
            page = await self._connection.ask(f"STREAM.INFO.{Stream.STATE}", body, timeout_s=REQUEST_TIMEOUT_S)
            listed = page["state"].get("subjects") or {}
            counts.update(subject.split(".")[2] for subject in listed)
            offset, total = offset + len(listed), page.get("total", 0) if listed else 0
        return counts


async def ensure_agent(connection: Connection, node: NodeName) -> None:
    """Create an agent's durable if missing. Raises BusError (other settings, no room), TimeoutError (no BOOK)."""
    life = await incarnation(connection, Stream.BOOK)
    wanted = streams.consumer_config(node, life)
    try:
        await _make_durable(connection, node, wanted, action="create")
        await _check_life(connection, life)
    except wire_format.ApiError as error:
        if error.err_code == wire_format.STREAM_NOT_FOUND:
            raise TimeoutError("there is no BOOK yet") from error
        if error.err_code == wire_format.CONSUMERS_LIMIT:
            why = "set default_max_consumers: -1 in jetstream.limits of the broker (docs/sizing.md)"
            raise BusError(f"{error}: {why}") from error
        if error.err_code != wire_format.CONSUMER_EXISTS:
            raise _not_made(error) from error
        await _compare_durable(connection, node, life, wanted)


async def _compare_durable(connection: Connection, node: NodeName, life: Incarnation, wanted: dict[str, Any]) -> None:
    name = streams.consumer_of(node)
    found = await _find(connection, f"CONSUMER.INFO.{Stream.BOOK}.{name}", wire_format.CONSUMER_NOT_FOUND)
    await _check_life(connection, life)
    if found is None:
        return
    of_another_life = incarnation_of_durable(found) not in {"", life}
    _compare(f"durable {name}", wanted, found["config"], but=("metadata",) if of_another_life else ())
    if of_another_life:
        try:
            await _make_durable(connection, node, wanted, action="update")
        except wire_format.ApiError as error:
            raise _not_made(error) from error


async def _make_durable(connection: Connection, node: NodeName, wanted: dict[str, Any], *, action: str) -> None:
    verb = f"CONSUMER.CREATE.{Stream.BOOK}.{streams.consumer_of(node)}.{wanted['filter_subject']}"
    body = {"stream_name": Stream.BOOK.value, "action": action, "config": wanted}
    await connection.ask(verb, body, timeout_s=REQUEST_TIMEOUT_S)


async def _check_life(connection: Connection, life: Incarnation) -> None:
    """Raises TimeoutError where BOOK was recreated meanwhile: what was read may be of the previous incarnation."""
    if await incarnation(connection, Stream.BOOK) != life:
        raise TimeoutError("BOOK was recreated meanwhile")


async def incarnation(connection: Connection, stream: Stream) -> Incarnation:
    """The first sequence that a stream was created with. Raises TimeoutError when there is no such stream."""
    return (await incarnation_and_end(connection, stream))[0]


async def incarnation_and_end(connection: Connection, stream: Stream) -> tuple[Incarnation, int]:
    """The same, and the stream's last sequence; its leader answers. Raises TimeoutError when there is none."""
    found = await _info(connection, stream)
    if found is None:
        raise TimeoutError(f"there is no {stream}")
    return Incarnation(str(found["config"].get("first_seq", 0))), found["state"]["last_seq"]


def incarnation_of_durable(info: dict[str, Any]) -> Incarnation:
    """The incarnation that `ensure_agent` wrote into a durable; empty for a durable created by other means."""
    return Incarnation((info["config"].get("metadata") or {}).get(streams.INCARNATION_KEY, ""))


async def _info(connection: Connection, stream: Stream) -> dict[str, Any] | None:
    return await _find(connection, f"STREAM.INFO.{stream}", wire_format.STREAM_NOT_FOUND)


async def _find(connection: Connection, verb: str, missing: int) -> dict[str, Any] | None:
    try:
        return await connection.ask(verb)
    except wire_format.ApiError as error:
        if error.err_code == missing:
            return None
        raise _not_made(error) from error


def _not_made(error: wire_format.ApiError, wanted: dict[str, Any] | None = None) -> Exception:
    if error.err_code == wire_format.INSUFFICIENT_STORAGE and wanted is not None:
        return BusError(
            f"the stream {wanted['name']} may take {wanted['max_bytes'] // MIB} MiB, and the broker's store has no "
            "room for it: set SLUICE_HISTORY_MIB to half of the broker's max_file_store, or enlarge it (docs/sizing.md)"
        )
    if error.code >= 500 or error.err_code in _NOT_YET:
        return TimeoutError(str(error))
    return BusError(str(error))


def _refuse_older(stream: Stream, info: dict[str, Any]) -> None:
    """
    Raises BusError where a stream continues from lower sequences than it was created with.

    Seen on nats-server 2.15.1: a server that was alone joins a cluster with its disk, and a new stream takes that over.
    """
    last, first = info["state"]["last_seq"], info["config"].get("first_seq", 0)
    if last + 1 < first:
        raise BusError(
            f"the stream {stream} was made to begin at {first} and ends at {last}: a server of the cluster has kept "
            "its data from when it was the only one. Stop the brokers, give all of them empty disks and start them; "
            'what was in the stream is published again (docs/operations.md, "From one broker to three")'
        )


def _compare(what: str, wanted: dict[str, Any], found: dict[str, Any], but: tuple[str, ...] = ()) -> None:
    differing = [
        f"{key} is {found.get(key)!r} instead of {value!r}"
        for key, value in wanted.items()
        if key not in but and not _same(value, found.get(key))
    ]
    if differing:
        raise BusError(f"the {what} exists with other settings: {'; '.join(differing)}")


def _same(wanted: Any, found: Any) -> bool:
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(_same(value, found.get(key)) for key, value in wanted.items())
    return bool(wanted == found) or (not wanted and not found)
