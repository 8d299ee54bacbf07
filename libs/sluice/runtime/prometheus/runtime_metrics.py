"""What every service counts: what its core does, and what becomes of it on the bus. Names only; no counting."""

from sluice.runtime.prometheus.metrics import Metric

STARTED = Metric("sluice_started_time_seconds", "gauge", "Start of this process, unix seconds.", ("service", "version"))
EVENT_SECONDS = Metric("sluice_core_event_seconds", "histogram", "Time a core took for one event.", ("core", "event"))
INSTRUCTIONS = Metric(
    "sluice_core_instructions_total", "counter", "Instructions issued by cores.", ("core", "instruction")
)
ACTION_SECONDS = Metric(
    "sluice_action_seconds",
    "histogram",
    "Time to carry out an instruction of a core, by its outcome.",
    ("core", "action", "outcome"),
)
INBOX = Metric("sluice_core_events_waiting", "gauge", "Events queued for a core.", ("core",))

WRITES = Metric(
    "sluice_bus_writes_total",
    "counter",
    "Writes to the bus by answer: accepted, refused (another write came first), unknown (no answer).",
    ("core", "word", "answer"),
)
WRITES_AGAIN = Metric(
    "sluice_bus_writes_again_total", "counter", "Writes repeated because they got no answer.", ("core", "word")
)
WRITE_SECONDS = Metric("sluice_bus_write_seconds", "histogram", "Time until the bus answered a write.", ("core",))
SILENT = Metric(
    "sluice_bus_silent_seconds",
    "gauge",
    "Time for which a connected broker has answered no write; 0 while it does. Sum over the connections of a process.",
    (),
)
READINGS = Metric("sluice_bus_readings_total", "counter", "Readings of a stream from its beginning.", ("stream",))
LAG = Metric(
    "sluice_bus_lag_messages",
    "gauge",
    "Messages pending for the readers of a process, at the last delivery.",
    ("stream",),
)
REDELIVERIES = Metric(
    "sluice_bus_redeliveries_total",
    "counter",
    "Messages redelivered because their acknowledgement was lost; duplicates are dropped.",
    ("stream",),
)
CONNECTED = Metric("sluice_bus_connected", "gauge", "Open connections to a broker.", ("core",))
CAUGHT_UP = Metric("sluice_core_caught_up", "gauge", "1 once all streams were read to their end.", ("core",))
RECONNECTS = Metric("sluice_bus_reconnects_total", "counter", "Reconnects to the bus.", ())
DENIED = Metric(
    "sluice_bus_denied_total",
    "counter",
    "Permission violations at the broker, by verb (publish, subscription). The service ends.",
    ("verb",),
)
POISON = Metric(
    "sluice_bus_poison_messages_total",
    "counter",
    "Unreadable messages that were set aside, by stream and fault.",
    ("stream", "fault"),
)

RETRIES = Metric("sluice_retries_total", "counter", "External calls that failed and were retried.", ("call", "error"))

LEASE_HELD = Metric("sluice_lease_held", "gauge", "1 for the leader of a role, 0 for a standby.", ("role",))
LEASE_CHANGES = Metric(
    "sluice_lease_changes_total", "counter", "Times this process took or lost the lease.", ("role", "to")
)
