"""Metrics of every service: the work of its core, and its exchange with the bus. Definitions only."""

from sluice.runtime.prometheus.metrics import Metric

STARTED = Metric("sluice_started_time_seconds", "gauge", "Start of this process, unix seconds.", ("service", "version"))
EVENT_SECONDS = Metric("sluice_core_event_seconds", "histogram", "Time a core took for one event.", ("core", "event"))
INSTRUCTIONS = Metric(
    "sluice_core_instructions_total", "counter", "Instructions issued by cores.", ("core", "instruction")
)
EVENT_SECONDS = Metric(
    "sluice_core_event_seconds", "histogram", "Time a core took for one event, decisions included.", ("core", "event")
)
INSTRUCTIONS = Metric("sluice_core_instructions_total", "counter", "What cores instructed.", ("core", "instruction"))
ACTION_SECONDS = Metric(
    "sluice_action_seconds",
    "histogram",
    "Time to carry out an instruction of a core, by its resulting event.",
    ("core", "action", "outcome"),
)
INBOX = Metric("sluice_core_events_waiting", "gauge", "Events queued for a core.", ("core",))

WRITES = Metric(
    "sluice_bus_writes_total",
    "counter",
    "Writes on the bus by result: accepted, refused (another writer was first), unknown (no answer).",
    ("core", "word", "answer"),
)
WRITES_AGAIN = Metric(
    "sluice_bus_writes_again_total",
    "counter",
    "Writes sent again because they had no answer.",
    ("core", "word"),
)
WRITE_SECONDS = Metric("sluice_bus_write_seconds", "histogram", "Time until the bus answered a write.", ("core",))
SILENT = Metric(
    "sluice_bus_silent_seconds",
    "gauge",
    "How long a connected broker has answered no write; 0 while it does; summed over the connections of a process.",
    (),
)
READINGS = Metric(
    "sluice_bus_readings_total", "counter", "Readings of a stream begun, the first one included.", ("stream",)
)
LAG = Metric(
    "sluice_bus_lag_messages",
    "gauge",
    "Messages pending for a reader when the broker sent the last one, summed over a process's readers.",
    ("stream",),
)
REDELIVERIES = Metric(
    "sluice_bus_redeliveries_total",
    "counter",
    "Messages delivered again because the broker got no acknowledgement; each is used once.",
    ("stream",),
)
CONNECTED = Metric(
    "sluice_bus_connected", "gauge", "Connections to a broker that are up; 0 while there is none.", ("core",)
)
CAUGHT_UP = Metric("sluice_core_caught_up", "gauge", "1 once every stream was read to its end.", ("core",))
RECONNECTS = Metric("sluice_bus_reconnects_total", "counter", "Reconnects to the bus.", ())
DENIED = Metric(
    "sluice_bus_denied_total",
    "counter",
    "Operations that the broker denied, by verb (publish, subscription). The service ends.",
    ("verb",),
)
POISON = Metric(
    "sluice_bus_poison_messages_total",
    "counter",
    "Unreadable messages that were set aside, by stream and fault.",
    ("stream", "fault"),
)

RETRIES = Metric("sluice_retries_total", "counter", "Calls that failed and were retried.", ("call", "error"))

LEASE_HELD = Metric("sluice_lease_held", "gauge", "1 where this process holds a role, 0 on standby.", ("role",))
LEASE_CHANGES = Metric(
    "sluice_lease_changes_total",
    "counter",
    "How often this process acquired (taken) or lost (lost) a role.",
    ("role", "to"),
)
