"""What every service counts: what its core does, and what becomes of it on the bus. Names only; no counting."""

from sluice.runtime.prometheus.metrics import Metric

STARTED = Metric(
    "sluice_started_time_seconds", "gauge", "When this process was started, in unix seconds.", ("service", "version")
)
EVENT_SECONDS = Metric(
    "sluice_core_event_seconds", "histogram", "What a core took for one event, decisions included.", ("core", "event")
)
INSTRUCTIONS = Metric("sluice_core_instructions_total", "counter", "What cores instructed.", ("core", "instruction"))
ACTION_SECONDS = Metric(
    "sluice_action_seconds",
    "histogram",
    "How long it took to carry out an instruction of a core, by the event that told how it went.",
    ("core", "action", "outcome"),
)
INBOX = Metric("sluice_core_events_waiting", "gauge", "Events that a core has not taken yet.", ("core",))

WRITES = Metric(
    "sluice_bus_writes_total",
    "counter",
    "Writes on the bus by what came of them: accepted, refused (somebody wrote first), unknown (no answer).",
    ("core", "word", "answer"),
)
WRITES_AGAIN = Metric(
    "sluice_bus_writes_again_total",
    "counter",
    "Writes that were sent once more, for they had no answer.",
    ("core", "word"),
)
WRITE_SECONDS = Metric("sluice_bus_write_seconds", "histogram", "How long the bus took to answer a write.", ("core",))
SILENT = Metric(
    "sluice_bus_silent_seconds",
    "gauge",
    "For how long a broker that we are connected to has answered no write; 0 while it does; added up over the "
    "connections of a process.",
    (),
)
READINGS = Metric(
    "sluice_bus_readings_total", "counter", "Readings of a stream that were begun, the first one included.", ("stream",)
)
LAG = Metric(
    "sluice_bus_lag_messages",
    "gauge",
    "Messages that the broker still had for a reader when it sent the last one, added up over a process's readers.",
    ("stream",),
)
REDELIVERIES = Metric(
    "sluice_bus_redeliveries_total",
    "counter",
    "Messages that were delivered once more, for the broker had not heard that they were read; each is taken once.",
    ("stream",),
)
CONNECTED = Metric(
    "sluice_bus_connected", "gauge", "Connections to a broker that are up; 0 while there is none.", ("core",)
)
CAUGHT_UP = Metric("sluice_core_caught_up", "gauge", "1 once everything that is read was read to its end.", ("core",))
RECONNECTS = Metric("sluice_bus_reconnects_total", "counter", "How often the bus was lost and found again.", ())
DENIED = Metric(
    "sluice_bus_denied_total",
    "counter",
    "What the broker did not let us do, by verb (publish, subscription). The service ends.",
    ("verb",),
)
POISON = Metric(
    "sluice_bus_poison_messages_total",
    "counter",
    "Messages that cannot be read and were set aside, by stream and kind of fault.",
    ("stream", "fault"),
)

RETRIES = Metric(
    "sluice_retries_total", "counter", "Calls of a shell that failed and were made again.", ("call", "error")
)

LEASE_HELD = Metric(
    "sluice_lease_held", "gauge", "1 where this process works in a role, 0 where it stands by.", ("role",)
)
LEASE_CHANGES = Metric(
    "sluice_lease_changes_total",
    "counter",
    "How often this process began (taken) or ceased (lost) to work.",
    ("role", "to"),
)
