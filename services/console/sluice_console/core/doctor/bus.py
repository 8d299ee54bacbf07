"""
Check a running system as the bus shows it: leaders, nodes, versions, clocks.

Times are compared on the broker's clock: each value carries its writer's time and the time at which the broker stored
it, which shows the writer's clock error. The local clock plays no part.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import stream_of
from sluice.contracts.bus.subjects import parse
from sluice.contracts.messages import AllocationRequested, GpuReport, HostFacts, LeaseHeld, SourceSynced
from sluice_console.core.doctor.findings import Check, FindingDocument, counted, named, ok, problem, unknown, warning
from sluice_console.core.fleet.fleet_state import FleetState

CLOCK_SKEW_S = 2.0
"""Larger differences are reported. A write takes milliseconds; decisions do not depend on other hosts' clocks, but
people compare logs and traces."""
STORES_NOTHING_S = 15.0
"""Leases are renewed every second or two, and expire after a few."""
UNREAD_SHOWN_MAX = 20
"""Undecodable messages listed one by one: a bad writer can leave thousands."""
BEHIND_S = 60.0
"""Age of an unread change of a node that is reported: the inventory reads within a second, and retries within ten."""
SOURCE_SILENT_S = 900.0
"""Default seconds between two lists of a cluster."""
FOLDER, FOLDER_SILENT_S = "folder", 60.0
"""Default seconds between two lists of a folder of manifests."""
CERTIFICATE = (
    "a certificate for programs outside Sluice, and how its calls get into the cluster: docs/install.md, "
    '"Calls between services"'
)
CLUSTER, WATCH = "cluster", "pod-watcher"
"""Default source of a cluster's pods, and its lease."""
TIMED_KINDS = ("lease", "source", "node", "inventory")
"""Nouns whose times are compared: one per kind of writer."""


@dataclass(frozen=True, slots=True)
class WriteTimes:
    """When a value was written, by its writer's clock and by the broker's, in unix seconds."""

    writer_s: float
    broker_s: float


@dataclass(frozen=True, slots=True)
class ServiceAnswer:
    """A service's answer: `problem` is empty when it answered, then `said` has the answer.

    `unasked`: why it was not queried, a property of this machine and not of the service."""

    problem: str = ""
    said: str = ""
    unasked: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedBus:
    """All data that was read. `allocator` and `inventory` are None if they were not queried."""

    url: str
    fleet_state: FleetState
    stream_problems: tuple[str, ...] = ()
    written: Mapping[str, WriteTimes] = field(default_factory=dict)
    """By subject."""
    allocator: ServiceAnswer | None = None
    inventory: ServiceAnswer | None = None
    version: str = ""
    """Version of this console."""
    trouble: str = ""
    """Why the broker cannot store; known only for a broker on this machine."""
    unstored_s: float | None = None
    """Seconds since STATE last stored a value, by the broker's clock."""


def timed_subjects(fleet_state: FleetState) -> list[str]:
    """The values whose times are needed."""
    return sorted(subject for subject in fleet_state.values if parse(subject).kind in TIMED_KINDS)


def check_bus(seen: ObservedBus) -> list[FindingDocument]:
    """Run all checks."""
    return [
        _broker(seen),
        *_streams(seen),
        *_messages(seen.fleet_state),
        *_allocator(seen),
        *_sources(seen),
        *_inventory(seen),
        *_agents(seen),
        *_gpus(seen.fleet_state),
        *_versions(seen),
        *_clocks(seen),
    ]


def _broker(seen: ObservedBus) -> FindingDocument:
    """A broker can answer and yet store nothing: its disk is full, or was (it keeps the error until restarted).

    Only a local broker reports that. Otherwise it shows by what is missing: lease holders write every second or two, so
    all leases expire."""
    if seen.trouble:
        return problem(Check.BROKER, seen.trouble, "free some space there; the broker is started again by itself")
    idle = seen.unstored_s is not None and seen.unstored_s > STORES_NOTHING_S
    if idle and not any(True for _ in seen.fleet_state.of("lease", LeaseHeld)):
        return problem(
            Check.BROKER,
            f"the broker at {seen.url} has stored nothing for {seen.unstored_s:.0f} s, and no service holds a lease: "
            "it cannot store, or none of them runs",
            "check its log: if its disk is full ('no space left on device'), free some space and start it "
            "again; in a cluster its liveness probe does that (docs/operations.md). Nothing is lost",
        )
    return ok(Check.BROKER, f"the broker at {seen.url} answers")


def silent_broker(url: str, *, clustered: bool) -> FindingDocument:
    """A broker that accepts us but whose streams do not answer."""
    if clustered:
        return problem(
            Check.BROKER,
            f"the broker at {url} lets us in, but its streams do not answer: of its cluster too few servers are there, "
            "or their disks are full, so nothing is granted or given back; pods run on",
            "bring the other servers back: two of three must run and have room on their disks; nothing is lost, "
            "and Sluice continues by itself",
        )
    return problem(
        Check.BROKER,
        f"the broker at {url} lets us in, but its streams do not answer: nothing is granted or given back; pods run on",
        "read the broker's log: is its disk full or slow? Nothing is lost",
    )


# -- inside -------------------------------------------------------------------------------------------------------


def _streams(seen: ObservedBus) -> Iterator[FindingDocument]:
    for sentence in seen.stream_problems:
        missing = "there is no stream" in sentence
        yield problem(
            Check.STREAMS,
            sentence,
            "sluice streams ensure"
            if missing
            else "existing streams are never changed: compare the broker's and this version, or wipe the broker "
            "(docs/operations.md)",
        )
    if not seen.stream_problems:
        yield ok(Check.STREAMS, "the streams are there as declared")


def _lease(seen: ObservedBus, role: str) -> LeaseHeld | None:
    held = seen.fleet_state.at("lease", LeaseHeld, role)
    return held if held is not None and held.owner else None


def _messages(fleet_state: FleetState) -> Iterator[FindingDocument]:
    for subject, why in sorted(fleet_state.unread.items())[:UNREAD_SHOWN_MAX]:
        stream = stream_of(subject.split(".")[1])
        yield problem(
            Check.MESSAGES,
            f"{subject} cannot be read ({why}); {_without(subject)}",
            "during an upgrade: finish it. Otherwise remove it, as the user in docs/evolution.md; its writer sends "
            f"it again: nats stream purge {stream} --subject {subject}",
        )
    if len(fleet_state.unread) > UNREAD_SHOWN_MAX:
        more = counted(len(fleet_state.unread) - UNREAD_SHOWN_MAX, "more message")
        yield problem(Check.MESSAGES, f"{more} cannot be read", "the services' logs name them (set aside)")
    if not fleet_state.unread and fleet_state.values:
        yield ok(Check.MESSAGES, f"all {len(fleet_state.values)} messages can be read")


def _without(subject: str) -> str:
    """What readers do meanwhile."""
    address = parse(subject)
    if address.kind == "ledger":
        return f"{address.key[0]} gets nothing new until it is gone"
    if address.kind in {"node", "inventory"}:
        return f"{address.key[0]} is not used until another message replaces it"
    return "it was set aside, and everything behind it is read"


def _allocator(seen: ObservedBus) -> Iterator[FindingDocument]:
    held = _lease(seen, "allocator")
    if held is None and _broker(seen).level != "ok":
        yield problem(
            Check.ALLOCATOR,
            "no allocator holds the lease, because the broker stores nothing; nothing new is granted",
            "repair the broker first; a running allocator then continues by itself",
        )
    elif held is None:
        yield problem(
            Check.ALLOCATOR,
            "no allocator is active (none holds the lease), so nothing new is granted",
            "start one, or read its log; a new one takes the lease within seconds",
        )
    elif seen.allocator is None:
        yield ok(Check.ALLOCATOR, f"run {held.owner} holds the lease; it was not queried")
    elif seen.allocator.unasked:
        # It renews its lease every second or two, so it runs and can write.
        yield ok(Check.ALLOCATOR, f"run {held.owner} holds the lease; not queried from here: {seen.allocator.unasked}")
    elif seen.allocator.problem:
        yield warning(
            Check.ALLOCATOR,
            f"run {held.owner} holds the lease, but {seen.allocator.problem}",
            "if it can be reached from here, read its log; in a cluster only pods may reach it",
        )
    else:
        yield ok(Check.ALLOCATOR, f"run {held.owner} holds the lease and answers")


def _sources(seen: ObservedBus) -> Iterator[FindingDocument]:
    sources = {key[0]: synced for key, synced in seen.fleet_state.of("source", SourceSynced)}
    if not sources:
        yield warning(
            Check.POD_WATCHER,
            "no source of requests is known: no pod-watcher has published anything",
            "start a pod-watcher; its log says what keeps it from listing pods",
        )
        return
    silent = []
    for name in sources:
        age_s = _age_s(seen, subjects.guarded("source", name).subject)
        if age_s is not None and age_s > (FOLDER_SILENT_S if name == FOLDER else SOURCE_SILENT_S):
            silent.append(f"{name} (for {age_s / 60:.0f} min)")
    if CLUSTER in sources and _lease(seen, WATCH) is None:
        yield problem(
            Check.POD_WATCHER,
            "no pod-watcher is active (none holds the lease); new pods are not served, and of "
            "ended ones nothing is freed",
            "start one, or read its log; a new one takes the lease within seconds",
        )
    elif silent:
        yield problem(
            Check.POD_WATCHER,
            f"silent for too long: {named(silent)}; new pods are not served, slices of ended ones not released",
            "start its pod-watcher, or read its log",
        )
    else:
        # The count in SourceSynced is as old as the last full list, up to minutes.
        asking = sum(each.source in sources for _, each in seen.fleet_state.of("request", AllocationRequested))
        yield ok(Check.POD_WATCHER, f"{named(sources)} asks for {counted(asking, 'pod')}")


def _inventory(seen: ObservedBus) -> Iterator[FindingDocument]:
    behind = [
        node
        for node, news in seen.fleet_state.news().items()
        if (pulled := seen.fleet_state.inventories().get(node)) is not None
        and not pulled.stale
        and (pulled.snapshot.agent_run, pulled.snapshot.generation) != (news.agent_run, news.generation)
        and (_age_s(seen, subjects.guarded("node", node).subject) or 0.0) > BEHIND_S
    ]
    if behind:
        yield problem(
            Check.INVENTORY,
            f"news of {counted(len(behind), 'node')} were not read for over a minute: {named(behind)}",
            "start the inventory, or read its log: the allocator decides from what it reads",
        )
    if seen.inventory is not None and seen.inventory.unasked:
        yield unknown(Check.INVENTORY, f"not queried from here: {seen.inventory.unasked}", CERTIFICATE)
    elif seen.inventory is not None and seen.inventory.problem:
        yield problem(Check.INVENTORY, seen.inventory.problem, "start the inventory, or read its log")
    elif seen.inventory is not None:
        yield ok(Check.INVENTORY, f"it answers: {seen.inventory.said}")
    elif not behind:
        yield ok(Check.INVENTORY, "it is up to date with every node; it was not queried (--inventory HOST:PORT)")


def _agents(seen: ObservedBus) -> Iterator[FindingDocument]:
    fleet_state = seen.fleet_state
    known = sorted({*fleet_state.news(), *fleet_state.inventories(), *fleet_state.heads()})
    if not known:
        yield problem(
            Check.AGENTS, "no node agent has published yet", "start the node agents; each says why in its log"
        )
        return
    pulled = fleet_state.inventories()
    never = [node for node in known if node not in pulled]
    if never:
        yield problem(
            Check.AGENTS,
            f"published, but never read by the inventory: {named(never)}",
            "the inventory's log says why: is the agent's address reachable from it?",
        )
    left = [node for node in known if _has_left(fleet_state, node)]
    if left:
        yield warning(
            Check.AGENTS,
            f"their Node objects are gone: {named(left)}; their slices are given up some minutes after their agents "
            "stop answering",
            "nothing; at once: sluice node remove NODE (docs/operations.md)",
        )
    for node in known:
        inventory = pulled.get(node)
        if inventory is not None and inventory.stale and node not in left:
            yield problem(
                Check.AGENTS,
                f"{node} does not answer ({inventory.stale_message or 'no reason is known'}); its slices stay, "
                "nothing new goes there",
                "start its agent; a node that is gone for good: docs/operations.md",
            )
    fresh = [node for node in known if node in pulled and not pulled[node].stale]
    closed = [node for node in fleet_state.unopened(fresh) if node not in left]
    if closed:
        yield warning(
            Check.AGENTS,
            f"not open yet for new slices: {named(closed)}",
            "lasts a moment after a start; if not, read the allocator's log",
        )
    for node in fresh:
        for sentence in pulled[node].snapshot.warnings:
            yield warning(Check.AGENTS, f"{node}: {sentence}", "sluice-node-agent show, on the node")
    if len(fresh) == len(known) and not closed and not left:
        yield ok(Check.AGENTS, f"{counted(len(known), 'node')}, all fresh and open")


def _has_left(fleet_state: FleetState, node: str) -> bool:
    host = fleet_state.at("host", HostFacts, node)
    return host is not None and host.is_of_no_object


def _gpus(fleet_state: FleetState) -> Iterator[FindingDocument]:
    gpus = [(node, gpu) for node, each in fleet_state.inventories().items() for gpu in each.snapshot.gpus]
    ill = [f"{node} GPU {gpu.index} ({_illness(gpu)})" for node, gpu in gpus if gpu.lost or not gpu.healthy]
    held = [f"{node} GPU {gpu.index}" for node, gpu in gpus if gpu.quarantined]
    if ill:
        yield warning(
            Check.GPUS,
            f"take no new slices: {named(ill)}",
            'docs/operations.md, "When something fails", by the message',
        )
    if held:
        yield warning(
            Check.GPUS,
            f"quarantined slices on {named(held)}",
            "sluice gpus shows which processes hold them (docs/node.md)",
        )
    if gpus and not ill and not held:
        yield ok(Check.GPUS, f"{counted(len(gpus), 'GPU')}, all well")


def _illness(gpu: GpuReport) -> str:
    return "lost" if gpu.lost else gpu.health_message or "unhealthy"


def _versions(seen: ObservedBus) -> Iterator[FindingDocument]:
    by_version: dict[str, list[str]] = {}
    if seen.version:
        by_version.setdefault(seen.version, []).append("this command")
    for key, held in seen.fleet_state.of("lease", LeaseHeld):
        if held.version:
            by_version.setdefault(held.version, []).append(key[0])
    for node, news in seen.fleet_state.news().items():
        if news.version:
            by_version.setdefault(news.version, []).append(f"node {node}")
    if len(by_version) > 1:
        listed = "; ".join(f"{version}: {named(who)}" for version, who in sorted(by_version.items()))
        yield warning(
            Check.VERSIONS,
            f"versions are mixed: {listed}",
            "finish the upgrade; while it goes on, this is as it should be",
        )
    elif by_version:
        ((version, who),) = by_version.items()
        yield ok(Check.VERSIONS, f"{counted(len(who), 'part')}, all of version {version}")


def _clocks(seen: ObservedBus) -> Iterator[FindingDocument]:
    if not seen.written:
        yield unknown(Check.CLOCKS, "nothing with a time was written yet", "check again when something runs")
        return
    off = {
        subject.removeprefix("sluice."): times.writer_s - times.broker_s
        for subject, times in seen.written.items()
        if abs(times.writer_s - times.broker_s) > CLOCK_SKEW_S
    }
    if off:
        listed = [f"the writer of {subject} by {skew_s:+.1f} s" for subject, skew_s in sorted(off.items())]
        yield warning(
            Check.CLOCKS,
            f"clocks differ from the broker's: {named(listed)}",
            "synchronize them (chrony, ntpd)",
        )
    else:
        yield ok(Check.CLOCKS, f"{counted(len(seen.written), 'writer')} within {CLOCK_SKEW_S:g} s of the broker")


def _age_s(seen: ObservedBus, subject: str) -> float | None:
    """Seconds since a value was stored, by the broker's clock.

    The newest value stands for now: a lease is renewed every two seconds."""
    times = seen.written.get(subject)
    if times is None:
        return None
    return _newest_s(list(seen.written.values())) - times.broker_s


def _newest_s(written: Sequence[WriteTimes]) -> float:
    return max(times.broker_s for times in written)
