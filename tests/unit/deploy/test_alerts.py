"""The alerts that are shipped: on metrics that exist, each with a sentence, a row in the docs and a test of the row."""

import ast
import re
from pathlib import Path

import pytest
from alerts_page import alerts, alerts_page, anchor, rules
from factories.text_rows import text_rows
from metrics_page import PARTS, metrics_of, page
from unit.deploy.queries import METRICS, labels_kept, named, problems_of

ROOT = Path(__file__).parents[3]
DOCTOR = "tests/unit/console/doctor/test_doctor_bus.py"
RUNNING = "tests/e2e/test_doctor.py"
FLEET = "tests/unit/inventory/test_counts.py"
AGENT = "tests/unit/node_agent"
MEASURED = "tests/unit/allocator/shell/test_decision_counter.py"
CERTIFICATES = "tests/integration/test_webhook_certificates.py"
API_SERVER = "tests/integration/test_kube_reflector.py"
SAID = f"""
no allocator works
  {RUNNING}::test_a_system_that_works_is_well_and_one_that_lost_its_allocator_is_not
no pod-watcher works
  {DOCTOR}::test_a_cluster_that_nobody_follows_is_told_at_once
no inventory works
  {DOCTOR}::test_an_inventory_that_lags_is_a_problem
no webhook can be asked
  {CERTIFICATES}::test_who_watches_sees_that_nobody_can_ask_it_and_when_its_certificate_ends
the webhook's certificate is not renewed
  {CERTIFICATES}::test_who_watches_sees_that_nobody_can_ask_it_and_when_its_certificate_ends
a service ends again and again
  tests/e2e/failures/test_wrong_setups.py::test_a_data_folder_that_cannot_be_written
a node's agent is away
  {FLEET}::test_metrics_show_a_silent_node_as_stale
a node answers and is not adopted
  {DOCTOR}::test_a_node_that_is_not_open_is_named
the broker is away
  {RUNNING}::test_what_cannot_be_looked_at_is_not_called_well
the broker has no quorum
  tests/integration/test_quorum.py::test_a_broker_without_quorum_is_named_in_log_metrics_and_doctor
the broker's disk is full
  {DOCTOR}::test_a_broker_that_stores_nothing_is_named_before_those_who_wait_for_it
the broker denies a service a subject
  tests/integration/test_bus_identity.py::test_a_service_with_anothers_user_ends_and_says_which_subject_it_was
a message cannot be read
  {DOCTOR}::test_a_message_that_nobody_can_read_is_named_with_how_to_remove_it
a GPU is ill or lost
  {FLEET}::test_metrics_show_unhealthy_gpus_and_quarantined_places
a slice is quarantined
  {FLEET}::test_metrics_show_unhealthy_gpus_and_quarantined_places
foreign instances
  {FLEET}::test_metrics_show_unhealthy_gpus_and_quarantined_places
an MPS daemon is down or in fault
  tests/e2e/test_shares.py::test_a_killed_agent_disturbs_no_tenant_and_a_killed_daemon_is_told_to_each
a journal was lost or damaged
  {AGENT}/test_journal.py::test_a_journal_that_lost_its_end_is_noticed_wherever_it_was_cut
the disk of a journal is full
  {AGENT}/test_journal.py::test_a_full_disk_loses_nothing_that_was_told
the API server is away
  {API_SERVER}::test_an_api_server_that_stays_away_is_told_once_with_what_follows
the API server throttles
  {API_SERVER}::test_a_server_that_is_busy_says_when_to_come_again
two allocators work at once
  tests/unit/allocator/shell/test_decision_counter.py::test_a_node_that_may_not_be_used_is_not_counted_as_open
more pods wait than the queue keeps
  tests/unit/allocator/queue/test_queue_limit.py::test_who_comes_when_too_many_wait_is_told_so
a slice is not in the ledger
  {MEASURED}::test_a_slice_that_the_ledger_does_not_know_is_a_leak
slices stand idle
  tests/unit/console/fleet/test_usage.py::test_those_that_have_idled_longest_come_first_and_no_others_come
pods wait for long
  tests/unit/allocator/shell/test_decision_counter.py::test_who_watches_sees_who_waits_for_what_and_how_long
a device refuses steps again and again
  {AGENT}/test_usage.py::test_refusals_are_counted_by_step_and_kind
a service reads too slowly
  tests/unit/sluice/runtime/nats/test_reader_lag.py::test_metrics_show_how_far_a_reader_is_behind
a core is slow
  tests/unit/sluice/runtime/prometheus/test_metrics.py::test_the_page_shows_counters_and_current_values
a clock is far off
  {DOCTOR}::test_a_clock_that_is_off_is_told_with_whose
"""
"""By what fails: the test that it is reported."""
TESTS = dict(text_rows(SAID))
REPORTED = {
    "SluiceNobodyAllocates": ("no allocator works",),
    "SluiceNobodyFollowsPods": ("no pod-watcher works",),
    "SluiceNoInventory": ("no inventory works",),
    "SluiceNoWebhook": ("no webhook can be asked",),
    "SluiceWebhookCertificateEnds": ("the webhook's certificate is not renewed",),
    "SluiceServiceRestarts": (
        "a service ends again and again",
        "the broker denies a service a subject",
        "the disk of a journal is full",
    ),
    "SluiceNodeStale": ("a node's agent is away", "the disk of a journal is full"),
    "SluiceNodeNotOpened": ("a node answers and is not adopted",),
    "SluiceBrokerAway": ("the broker is away",),
    "SluiceBrokerSilent": ("the broker has no quorum", "the broker's disk is full"),
    "SluiceDenied": ("the broker denies a service a subject",),
    "SluiceMessageSetAside": ("a message cannot be read",),
    "SluiceGpuIll": ("a GPU is ill or lost",),
    "SluiceQuarantine": ("a slice is quarantined",),
    "SluiceForeignInstances": ("foreign instances",),
    "SluiceMpsDaemonDown": ("an MPS daemon is down or in fault",),
    "SluiceJournalDistrusted": ("a journal was lost or damaged",),
    "SluiceApiServerAway": ("the API server is away",),
    "SluiceApiServerThrottles": ("the API server throttles",),
    "SluiceTwoAllocators": ("two allocators work at once",),
    "SluiceQueueFull": ("more pods wait than the queue keeps",),
    "SluiceLeakedSlices": ("a slice is not in the ledger",),
    "SluiceSlicesIdle": ("slices stand idle",),
    "SluicePodsWaitLong": ("pods wait for long",),
    "SluiceDeviceRefuses": ("a device refuses steps again and again",),
    "SluiceReadersLag": ("a service reads too slowly",),
    "SluiceCoreSlow": ("a core is slow",),
}
"""By alert: what fails."""
WITHOUT_ALERT = {"a clock is far off"}
"""Node exporters have one: `node_timex_offset_seconds`."""


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])
def test_an_alert_is_about_metrics_that_exist_and_says_what_to_do(alert):
    """One on a name that is not counted any more never fires, unnoticed."""
    assert problems_of(alert["expr"]) == []
    assert alert["labels"]["severity"] in {"critical", "warning", "info"}
    for words in ("summary", "description"):
        assert alert["annotations"][words].endswith((".", "?")), words
    page, _, heading = alert["annotations"]["runbook_url"].partition("#")
    headings = [line.removeprefix("## ") for line in (ROOT / page).read_text(encoding="utf-8").splitlines()]
    assert [anchor(each) for each in headings].count(heading) == 1
    assert heading == anchor(alert["alert"])


@pytest.mark.parametrize("rule", rules("record"), ids=lambda rule: rule["record"])
def test_a_recorded_series_is_of_metrics_that_exist_and_is_named_by_what_it_keeps(rule):
    """A chart over months would be empty; names are LEVEL:METRIC:OPERATION (prometheus.io/docs/practices/rules)."""
    assert problems_of(rule["expr"]) == []
    level, metric, operation = rule["record"].split(":")
    assert {level} == labels_kept(rule["expr"])
    assert metric.startswith("sluice_")
    assert operation


def test_every_alert_is_about_failures_that_are_tested():
    """An operator relies on each at night: what it reports is reported, and every failure has its alert."""
    assert set(REPORTED) == {alert["alert"] for alert in alerts()}
    assert {what for failures in REPORTED.values() for what in failures} | WITHOUT_ALERT == set(TESTS)
    for what, told in TESTS.items():
        path, test = told.split("::")
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        tests = {each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert test in tests, (what, told)


@pytest.mark.parametrize("lives_s", [30, 120])
def test_a_service_that_ends_again_and_again_is_told_of_as_long_as_it_does(lives_s):
    """A kubelet's restart backoff grows to five minutes (pod-lifecycle, restart-policy): by then the alert was over."""
    (expression,) = [each["expr"] for each in alerts() if each["alert"] == "SluiceServiceRestarts"]
    found = re.fullmatch(r"changes\(sluice_started_time_seconds\[(\d+)([mh])\]\) > (\d+)", expression)
    window_s, most = int(found[1]) * {"m": 60, "h": 3600}[found[2]], int(found[3])
    seen, begun_s, pause_s = [], 0, 10
    while begun_s < 6 * 3600:
        seen += [(at_s, begun_s) for at_s in range(begun_s, begun_s + lives_s, 15)]
        begun_s, pause_s = begun_s + lives_s + pause_s, min(300, 2 * pause_s)
    for now_s in range(1800, 6 * 3600, 60):
        assert len({begun for at_s, begun in seen if now_s - window_s < at_s <= now_s}) - 1 > most, now_s


def test_every_metric_that_is_named_anywhere_exists():
    """In the docs and the components: a renamed metric leaves no picture without numbers."""
    for path in (*(ROOT / "docs").glob("*.md"), *(ROOT / "deploy").rglob("*.yaml"), *(ROOT / "deploy").rglob("*.md")):
        for name in re.findall(r"\bsluice_[a-z_]+_(?:total|seconds|ratio|bytes)\b", path.read_text(encoding="utf-8")):
            assert named(name) is not None, (path.name, name)


def test_names_follow_the_rules_of_prometheus():
    """A user of Prometheus can guess what a name means, and its tools do not complain."""
    for metric in METRICS.values():
        assert re.fullmatch(r"sluice_[a-z]+(_[a-z]+)*", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert metric.name.endswith("_seconds") or metric.kind != "histogram", metric.name
        assert metric.help.endswith("."), metric.name
    assert len(METRICS) == sum(len(metrics_of(module)) for _, module in PARTS), "two of one name"


def test_the_page_of_metrics_is_up_to_date():
    assert (ROOT / "docs/metrics.md").read_text(encoding="utf-8") == page(), "run `make docs`"
    assert (ROOT / "docs/alerts.md").read_text(encoding="utf-8") == alerts_page(), "run `make docs`"
