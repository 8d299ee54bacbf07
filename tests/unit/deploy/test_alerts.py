"""The alerts that are shipped: on metrics that exist, each with a sentence, a row in the docs and a test of the row."""

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
REPORTED = f"""
SluiceNobodyAllocates
  {RUNNING}::test_a_system_that_works_is_well_and_one_that_lost_its_allocator_is_not
SluiceNobodyFollowsPods
  {DOCTOR}::test_a_cluster_without_a_pod_watcher_is_reported_at_once
SluiceNoInventory
  {DOCTOR}::test_an_inventory_that_lags_is_a_problem
SluiceNoWebhook
  {CERTIFICATES}::test_an_operator_sees_that_no_client_can_ask_it_and_when_its_certificate_ends
SluiceWebhookCertificateEnds
  {CERTIFICATES}::test_an_operator_sees_that_no_client_can_ask_it_and_when_its_certificate_ends
SluiceServiceRestarts
  tests/e2e/failures/test_wrong_setups.py::test_a_data_folder_that_cannot_be_written
  tests/integration/test_bus_identity.py::test_a_service_with_anothers_user_ends_and_says_which_subject_it_was
  {AGENT}/test_journal.py::test_a_full_disk_loses_nothing_that_was_told
SluiceNodeStale
  {FLEET}::test_metrics_show_a_silent_node_as_stale
  {AGENT}/test_journal.py::test_a_full_disk_loses_nothing_that_was_told
SluiceNodeNotOpened
  {DOCTOR}::test_a_node_that_is_not_open_is_named
SluiceBrokerAway
  {RUNNING}::test_what_cannot_be_looked_at_is_not_called_well
SluiceBrokerSilent
  tests/integration/test_quorum.py::test_a_broker_without_quorum_is_named_in_log_metrics_and_doctor
  {DOCTOR}::test_a_broker_that_stores_nothing_is_named_before_those_who_wait_for_it
SluiceDenied
  tests/integration/test_bus_identity.py::test_a_service_with_anothers_user_ends_and_says_which_subject_it_was
SluiceMessageSetAside
  {DOCTOR}::test_an_unreadable_message_is_named_with_how_to_remove_it
SluiceGpuIll
  {FLEET}::test_metrics_show_unhealthy_gpus_and_quarantined_places
SluiceQuarantine
  {FLEET}::test_metrics_show_unhealthy_gpus_and_quarantined_places
SluiceForeignInstances
  {FLEET}::test_metrics_show_unhealthy_gpus_and_quarantined_places
SluiceMpsDaemonDown
  tests/e2e/test_shares.py::test_a_killed_agent_disturbs_no_tenant_and_a_killed_daemon_is_told_to_each
SluiceJournalDistrusted
  {AGENT}/test_journal.py::test_a_journal_that_lost_its_end_is_noticed_wherever_it_was_cut
SluiceApiServerAway
  {API_SERVER}::test_an_api_server_that_stays_away_is_told_once_with_what_follows
SluiceApiServerThrottles
  {API_SERVER}::test_a_server_that_is_busy_says_when_to_come_again
SluiceTwoAllocators
  {MEASURED}::test_a_node_that_may_not_be_used_is_not_counted_as_open
SluiceQueueFull
  tests/unit/allocator/queue/test_queue_limit.py::test_who_comes_when_too_many_wait_is_told_so
SluiceLeakedSlices
  {MEASURED}::test_a_slice_that_the_ledger_does_not_know_is_a_leak
SluiceSlicesIdle
  tests/unit/console/fleet/test_usage.py::test_those_that_have_idled_longest_come_first_and_no_others_come
SluicePodsWaitLong
  {MEASURED}::test_who_watches_sees_who_waits_for_what_and_how_long
SluiceDeviceRefuses
  {AGENT}/test_usage.py::test_refusals_are_counted_by_step_and_kind
SluiceReadersLag
  tests/unit/sluice/runtime/nats/test_reader_lag.py::test_metrics_show_how_far_a_reader_is_behind
SluiceCoreSlow
  tests/unit/sluice/runtime/prometheus/test_metrics.py::test_the_page_shows_counters_and_current_values
"""
"""By alert: the tests that what it is about is reported."""


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
    """An operator relies on each at night: what it reports is reported."""
    reported = {alert: tests for alert, *tests in text_rows(REPORTED)}
    assert set(reported) == {alert["alert"] for alert in alerts()}
    for alert, tests in reported.items():
        assert tests, alert
        for path, name in (test.split("::") for test in tests):
            assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), (alert, path, name)


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
