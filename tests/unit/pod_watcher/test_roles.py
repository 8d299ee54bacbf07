"""The settings of each role, and the readiness of a watch."""

import pytest

from sluice.contracts.admission.config import HOST_DIRECTORIES
from sluice.runtime.settings import SettingsError, load
from sluice_pod_watcher.core.cluster.events import ListingEnded
from sluice_pod_watcher.settings import PodWatcherSettings
from sluice_pod_watcher.shell.kube.app import WatchStatus


def loaded(**own: str) -> PodWatcherSettings:
    environ = {f"SLUICE_POD_WATCHER_{name}": value for name, value in own.items()}
    return load(PodWatcherSettings, service="pod-watcher", environ=environ)


@pytest.mark.parametrize(
    ("own", "sentence"),
    [
        ({}, "SLUICE_POD_WATCHER_PODS_DIR is not set"),
        ({"PODS_DIR": "/pods", "SOURCE": "a.b"}, "source = 'a.b'"),
        ({"PODS_DIR": "/pods", "MAX_GPUS_PER_NODE": "0"}, "max_gpus_per_node = 0"),
        ({"PODS_DIR": "/pods", "CLOSING_TTL_S": "0"}, "closing_ttl_s"),
        ({"PODS_DIR": "/pods", "RELIST_S": "0"}, "relist_s must be from 0.1"),
        ({"PODS_DIR": "/pods", "PODS_DRI": "x"}, "did you mean"),
        ({"ROLE": "both"}, "ROLE is 'both': .* \\(one of folder, watch, webhook, all, callout, uninstall\\)"),
        ({"ROLE": "folder"}, "SLUICE_POD_WATCHER_PODS_DIR is not set: role = 'folder' reads"),
        ({"ROLE": "watch", "PODS_DIR": "/pods"}, "pods_dir applies to role = 'folder' only; role = 'watch' is set"),
        ({"ROLE": "webhook", "LIMITS_FILE": "/l"}, "limits_file does not apply to role = 'webhook'"),
        ({"ROLE": "all", "FLEET_FILE": "/f"}, "fleet_file applies to role = 'folder' only"),
        ({"ROLE": "webhook", "WEBHOOK_ADDRESS": "8443"}, "webhook_address = '8443': must be HOST:PORT with a port"),
        ({"ROLE": "webhook", "WEBHOOK_ADDRESS": "::1:8443"}, "an IPv6 address stands in brackets"),
        ({"ROLE": "watch", "WATCH_HEALTH_ADDRESS": "x:70000"}, "watch_health_address = 'x:70000'"),
        ({"ROLE": "webhook", "NAMESPACE": "Sluice System"}, "namespace = 'Sluice System': must be an object name"),
        ({"ROLE": "webhook", "TLS_SECRET": ""}, "tls_secret = '': must be an object name"),
        ({"ROLE": "webhook", "RUNTIME_CLASS": "NVIDIA"}, "runtime_class = 'NVIDIA'"),
        ({"ROLE": "webhook", "EXEMPT_NAMESPACES": "a,B"}, "exempt_namespaces holds 'B'"),
        ({"ROLE": "webhook", "DEFAULT_MODE": "many"}, "default_mode = 'many': must be one of exclusive, mps"),
        ({"ROLE": "webhook", "ENV_ALLOWED": "NVIDIA_VISIBLE_DEVICES"}, "env_allowed holds 'NVIDIA_VISIBLE_DEVICES'"),
        ({"ROLE": "webhook", "HOST_DIRECTORIES": "/"}, "host_directories holds '/'"),
        ({"ROLE": "watch", "RESYNC_S": "0"}, "resync_s = 0: must be from 1 to 86400"),
        ({"ROLE": "watch", "EVICT_RETRY_S": "0"}, "evict_retry_s = 0: must be from 0.1 to 3600"),
        ({"ROLE": "watch", "LEASE_TTL_S": "0"}, "lease_ttl_s"),
        ({"ROLE": "uninstall", "UNINSTALL_WAIT_S": "0"}, "uninstall_wait_s = 0: must be from 1 to 3600"),
        ({"ROLE": "watch", "START_AFTER_S": "-1"}, "start_after_s must be at least 0"),
    ],
)
def test_a_setting_that_cannot_work_is_one_sentence(own, sentence):
    with pytest.raises(SettingsError, match=sentence) as caught:
        loaded(**own)
    assert "\n" not in str(caught.value)


def test_a_cluster_needs_no_setting_but_its_role():
    config = loaded(ROLE="watch").cluster_config()
    assert (config.source, config.mirror_gpus, config.max_gpus_per_node) == ("cluster", True, 8)
    judged = loaded(ROLE="webhook").admission_config()
    assert judged.exempt_namespaces == {"kube-system", "sluice-system", "sluice-nodes"}
    assert judged.host_directories == HOST_DIRECTORIES
    assert loaded(ROLE="folder", PODS_DIR="/pods").config().source == "folder"


def test_settings_of_a_folder_reach_its_rules():
    settings = loaded(
        PODS_DIR="/pods", SOURCE="lab", RELIST_S="2", GONE_GRACE_S="0.5", CLOSING_TTL_S="60", MAX_GPUS_PER_NODE="4",
        FLEET_FILE="/fleet.toml",
    )  # fmt: skip
    config = settings.config()
    assert (config.source, config.relist_s, config.gone_grace_s, config.closing_ttl_s) == ("lab", 2.0, 0.5, 60)
    assert (config.max_gpus_per_node, str(settings.fleet_file)) == (4, "/fleet.toml")


def test_settings_of_a_cluster_reach_its_rules():
    config = loaded(
        ROLE="all", SOURCE="east", MAX_GPUS_PER_NODE="4", CLOSING_TTL_S="60", MIRROR_GPUS="false", EVICT_LOST="false",
        UNSCHEDULED_AFTER_S="5", START_AFTER_S="0", EVICT_RETRY_S="3",
    ).cluster_config()  # fmt: skip
    assert (config.source, config.max_gpus_per_node, config.closing_ttl_s) == ("east", 4, 60)
    assert (config.mirror_gpus, config.evict_lost, config.unscheduled_after_s, config.start_after_s) == (
        False, False, 5.0, 0.0,
    )  # fmt: skip
    assert config.evict_retry_s == 3.0
    judged = loaded(
        ROLE="all", MAX_GPUS_PER_NODE="4", NAMESPACE="gpu-system", EXEMPT_NAMESPACES="kube-system, ci",
        RUNTIME_CLASS="nvidia", ALLOW_PRIVILEGED="true", DEFAULT_MODE="mps", ENV_ALLOWED="",
        HOST_DIRECTORIES="/run/sluice,/var/lib/k0s/kubelet/pods",
    ).admission_config()  # fmt: skip
    assert judged.exempt_namespaces == {"kube-system", "ci", "gpu-system"}, "its own namespace must start without it"
    assert (judged.runtime_class, judged.allow_privileged, judged.default_mode) == ("nvidia", True, "mps")
    assert (judged.max_gpus_per_node, judged.env_allowed) == (4, frozenset())
    assert judged.host_directories == ("/run/sluice", "/var/lib/k0s/kubelet/pods")


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


def test_a_watch_is_ready_when_it_stands_by_or_has_listed_everything():
    """A rollout goes on when the new process is ready: before that the old one must stay."""
    status = WatchStatus(Clock(), 300.0)
    assert status.why_not_ready() == ""
    status.begins()
    assert "has not listed yet: nodes, others, pods" in status.why_not_ready()
    for what in ("nodes", "others"):
        status.offered(ListingEnded(what, "1"))
    assert "has not listed yet: pods" in status.why_not_ready()
    status.offered(ListingEnded("pods", "1"))
    assert status.why_not_ready() == ""
    status.ends()
    status.begins()
    assert "has not listed yet" in status.why_not_ready(), "it starts again with each lease"


def test_a_watch_that_lists_nothing_any_more_is_not_ready():
    """An API server that is away for long is seen in `kubectl get pods`, not only in a log."""
    clock = Clock()
    status = WatchStatus(clock, 300.0)
    status.begins()
    for what in ("nodes", "others", "pods"):
        status.offered(ListingEnded(what, "1"))
    clock.now = 650.0
    assert status.why_not_ready() == ""
    clock.now = 661.0
    assert status.why_not_ready().startswith("the last listing of nodes was 661 s ago")
