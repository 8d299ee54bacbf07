"""Settings of the pod-watcher: its role, and the tunables of each role."""

import re
from pathlib import Path
from typing import Literal

from sluice.contracts import idle_rules
from sluice.contracts.admission.config import ENV_ALLOWED, HOST_DIRECTORIES
from sluice.contracts.driver_capabilities import CAPABILITIES
from sluice.contracts.ids import SourceName, is_token
from sluice.runtime import addresses, settings
from sluice_pod_watcher.admission import AdmissionConfig
from sluice_pod_watcher.core.cluster.config import CLUSTER, ClusterConfig
from sluice_pod_watcher.core.folder.events import FOLDER, FolderConfig
from sluice_pod_watcher.core.same_fields import like

HandOver = Literal["auto", "dra", "tickets"]
Role = Literal["folder", "watch", "webhook", "all", "callout", "uninstall"]
_OBJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
"""RFC 1123 names (https://kubernetes.io/docs/concepts/overview/working-with-objects/names/)."""


_OBJECTS = (
    "namespace",
    "webhook_service",
    "tls_secret",
    "webhook_configuration",
    "runtime_class",
    "nodes_namespace",
    "bus_service",
    "bus_statefulset",
    "bus_keys_secret",
    "bus_server_secret",
    "bus_ca",
)
"""Settings that are names of objects."""


class PodWatcherSettings(settings.CommonSettings, frozen=True, kw_only=True):
    """Its role, its pods, its API server, and the tunables of each role."""

    role: Role = "folder"
    """`folder` reads manifests, `watch` follows a cluster's pods, `webhook` is the admission webhook, `all` the last
    two; `callout` tells the broker what the owner of a ServiceAccount token may do. `uninstall` opens gates, waits for
    slices, cleans nodes and ends."""
    source: str = ""
    """Name of this source; empty is `folder` or `cluster`. Two of a kind need two names: a source withdraws what it
    does not list."""
    max_gpus_per_node: int = 8
    """Refuse requests for more GPUs on a node; 1 to 64."""
    driver_capabilities: tuple[str, ...] = CAPABILITIES
    """That containers may choose. `compute` and `utility` are always included."""
    closing_ttl_s: int = 4 * 3600
    """How long final messages stay on the bus."""
    tick_s: float = 0.5
    """Timer interval; 0.01 to 1."""
    limits_file: Path | None = None
    """TOML file with quotas and cordons (docs/quotas.md). It may be missing."""

    # -- folder ---------------------------------------------------------------------------------------------------
    pods_dir: Path | None = None
    """`folder`: existing directory of manifests (`*.yaml`, `*.yml`, `*.json`; no sub-directories). Required."""
    fleet_file: Path | None = None
    """`folder`: fleet file, for what simulated nodes have besides GPUs."""
    relist_s: float = 5.0
    """`folder`: listing interval, whatever the file system reports."""
    gone_grace_s: float = 1.0
    """`folder`: how long a pod is missing, or its file broken, before it counts."""

    # -- watch, webhook -------------------------------------------------------------------------------------------
    kubeconfig: Path | None = None
    """`watch`, `webhook`, `callout`: unset uses the service account."""

    # -- watch ----------------------------------------------------------------------------------------------------
    lease_ttl_s: int = 5
    """`watch`: a standby takes over after this, whole seconds, 1 to 300."""
    resync_s: float = 300.0
    """`watch`: relist interval."""
    hand_over: HandOver = "auto"
    """
    `watch`, `webhook`: how new pods get their devices. `dra`: by a ResourceClaim that the kubelet prepares; `tickets`:
    by a volume; `auto`: `dra` once every GPU node can. The namespace label `sluice.dev/hand-over` overrides it."""
    mirror_gpus: bool = True
    """`watch`: mirror the fleet into `kubectl get gpus`."""
    evict_lost: bool = True
    """`watch`: evict a pod whose slice was lost, if a controller recreates it."""
    evict_retry_s: float = 10.0
    """`watch`: pause after a blocked eviction; it doubles up to a minute."""
    idle_evictions: Literal["report", "evict"] = "report"
    """`watch`: evict idle pods (docs/usage.md#idle-pods), or only warn."""
    idle_after: tuple[str, ...] = ()
    """`watch`: NAMESPACE=TIME, `*` for all others: their pods' default."""
    idle_protected: str = ""
    """`watch`: windows without evictions of idle pods; a pod's own win."""
    unscheduled_after_s: float = 60.0
    """`watch`: a pod not scheduled this long after its gate opened has failed (`NotStarted`); 0 never."""
    start_after_s: float = 1800.0
    """`watch`: a placed pod without a started container this long after its gate opened is given up; 0 never."""
    node_removed_after_s: float = 300.0
    """`watch`: remove a node whose Node object is absent this long and whose agent does not answer."""
    protect_pods: bool = False
    """`watch`: keep node autoscalers from evicting pods with slices, but not `movable` ones (docs/autoscaling.md)."""
    placeholder_image: str = "registry.k8s.io/pause:3.10"
    """`watch`: of placeholder pods, which ask an autoscaler for nodes (docs/autoscaling.md)."""
    placeholders_max: int = 50
    """`watch`: most placeholder pods at once; 0 to 500."""
    watch_health_address: str = ""
    """`watch`, `callout`: `host:port` of `/healthz` and `/readyz`, plain HTTP; empty serves none."""

    # -- webhook --------------------------------------------------------------------------------------------------
    webhook_address: str = "127.0.0.1:8443"
    """`webhook`: HTTPS server; no host is every address, port 0 any free one."""
    certificate_dir: Path | None = None
    """`webhook`: `tls.crt` and `tls.key`, as from cert-manager. If set, it makes no certificate, writes no caBundle and
    does not call the API server."""
    namespace: str = "sluice-system"
    """`watch`, `webhook`, `callout`: of its Service, Secrets and ConfigMaps. Pods there are never touched."""
    webhook_service: str = "sluice-webhook"
    """`webhook`: its Service, which the certificate names."""
    tls_secret: str = "sluice-webhook-tls"  # noqa: S105 - the name of an object
    """`webhook`: Secret with the certificates; must exist, may be empty."""
    webhook_configuration: str = "sluice"
    """`webhook`: MutatingWebhookConfiguration whose caBundle it writes."""
    exempt_namespaces: tuple[str, ...] = ("kube-system", "sluice-system", "sluice-nodes")
    """`webhook`: their pods are never touched."""
    runtime_class: str = ""
    """`webhook`: existing RuntimeClass for GPU pods that name none; empty sets none."""
    allow_privileged: bool = False
    """`webhook`: allow pods with slices `privileged` or `hostPID`. They see every GPU of the node."""
    default_mode: str = ""
    """`webhook`: for containers that name none: `exclusive`, `mps`, `fractional` or `auto`; empty changes nothing."""
    env_allowed: tuple[str, ...] = ENV_ALLOWED
    """`webhook`: `NVIDIA_` variables that a pod may set."""
    hand_over_file: Path | None = None
    """`webhook`: with `hand_over = auto`, `mode` of the mounted ConfigMap `sluice-hand-over`. It may be missing."""
    host_directories: tuple[str, ...] = HOST_DIRECTORIES
    """`webhook`: host directories that no GPU pod may mount, nor any above or below."""

    # -- uninstall ------------------------------------------------------------------------------------------------
    nodes_namespace: str = "sluice-nodes"
    """`callout`, `uninstall`: of the agents."""
    uninstall: Literal["gates", "all"] = "all"
    """`uninstall`: all of it, or the gates only."""
    uninstall_wait_s: float = 90.0
    """`uninstall`: how long to wait for gates, pods, slices and nodes, each; 1 to 3600."""
    leave_slices: bool = False
    """`uninstall`: leave slices on the GPUs."""
    # -- callout --------------------------------------------------------------------------------------------------
    token_audience: str = "sluice-bus"  # noqa: S105 - an audience
    """`callout`: the audience of tokens for the broker."""
    bus_service: str = "sluice-nats"
    """`callout`: the broker's Service; its headless one ends in `-servers`. The broker's certificate names both."""
    bus_names: tuple[str, ...] = ()
    """`callout`: DNS names in the broker's certificate, instead of its Services'."""
    bus_statefulset: str = "sluice-nats"
    """`callout`: the broker, restarted when its keys change; empty restarts none."""
    bus_keys_secret: str = "sluice-bus-keys"  # noqa: S105 - the name of an object
    """`callout`: Secret with all keys of the bus; must exist, may be empty. To replace all keys, empty it."""
    bus_server_secret: str = "sluice-nats-keys"  # noqa: S105 - the name of an object
    """`callout`: Secret that the broker mounts: certificate, and public keys; must exist, may be empty."""
    bus_ca: str = "sluice-bus-authorities"
    """`callout`: ConfigMap with the broker's authorities in both namespaces; must exist, may be empty."""

    def __post_init__(self) -> None:
        """Check the settings. Raises ValueError with one sentence."""
        self._check_role()
        self._check_numbers()
        self._check_names()
        address_of(self.webhook_address, "webhook_address")
        if self.watch_health_address:
            address_of(self.watch_health_address, "watch_health_address")
        self.admission_config()
        self._idle_after_s()

    def _check_numbers(self) -> None:
        for name, low, high in (
            ("max_gpus_per_node", 1, 64),
            ("resync_s", 1, 86_400),
            ("placeholders_max", 0, 500),
            ("evict_retry_s", 0.1, 3600),
            ("uninstall_wait_s", 1, 3600),
        ):
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"{name} = {getattr(self, name):g}: must be from {low:g} to {high:g}")
        if self.closing_ttl_s < 1 or not 1 <= self.lease_ttl_s <= 300:
            raise ValueError("closing_ttl_s and lease_ttl_s must be whole seconds, at least 1; lease_ttl_s at most 300")
        if not 0.1 <= self.relist_s <= 3600 or not 0 <= self.gone_grace_s <= 3600 or not 0.01 <= self.tick_s <= 1:
            raise ValueError("relist_s must be from 0.1 to 3600, gone_grace_s from 0 to 3600, tick_s from 0.01 to 1")
        if not self.placeholder_image:
            raise ValueError("placeholder_image is empty: name an image that nodes can pull, such as pause")
        if self.node_removed_after_s < 1:
            raise ValueError(f"node_removed_after_s = {self.node_removed_after_s:g}: must be at least 1")
        if self.unscheduled_after_s < 0 or self.start_after_s < 0:
            raise ValueError("unscheduled_after_s and start_after_s must be at least 0; 0 waits forever")

    def _check_names(self) -> None:
        if self.source and not is_token(self.source):
            raise ValueError(f"source = {self.source!r}: use letters, digits, '-' and '_', at most 200 characters")
        for name in _OBJECTS:
            text = getattr(self, name)
            if not _OBJECT_NAME.fullmatch(text) and (text or name not in {"runtime_class", "bus_statefulset"}):
                raise ValueError(f"{name} = {text!r}: must be an object name of a-z, 0-9, '-' and '.'")
        for name in self.exempt_namespaces:
            if not _OBJECT_NAME.fullmatch(name):
                raise ValueError(f"exempt_namespaces holds {name!r}: use names of namespaces, separated by commas")

    def _check_role(self) -> None:
        """Each role has its settings, and no setting of another role, which would silently be ignored."""
        if self.role == "folder":
            if self.pods_dir is None:
                raise ValueError(
                    "SLUICE_POD_WATCHER_PODS_DIR is not set: role = 'folder' reads the pods from that folder "
                    "(a cluster's pods: SLUICE_POD_WATCHER_ROLE=watch)"
                )
            return
        for name in ("pods_dir", "fleet_file"):
            if getattr(self, name) is not None:
                raise ValueError(f"{name} applies to role = 'folder' only; role = {self.role!r} is set")
        if self.role in {"webhook", "callout"} and self.limits_file is not None:
            right = "set it for the role that watches pods"
            raise ValueError(f"limits_file does not apply to role = {self.role!r}; {right}")

    def _idle_after_s(self) -> dict[str, int]:
        """By namespace. Raises ValueError."""
        found: dict[str, int] = {}
        for entry in self.idle_after:
            namespace, _, text = entry.partition("=")
            seconds = idle_rules.idle_after_s(text)
            if seconds is None or not (namespace == "*" or _OBJECT_NAME.fullmatch(namespace)):
                right = f"give NAMESPACE=TIME, * for all others; TIME is {idle_rules.AFTER_ALLOWED}"
                raise ValueError(f"idle_after holds {entry!r}: {right}")
            found[namespace] = seconds
        if idle_rules.windows_of(self.idle_protected) is None:
            raise ValueError(f"idle_protected = {self.idle_protected!r}: give {idle_rules.WINDOW_ALLOWED}")
        return found

    def config(self) -> FolderConfig:
        return like(FolderConfig, self, source=SourceName(self.source or FOLDER))

    def cluster_config(self) -> ClusterConfig:
        return like(ClusterConfig, self, source=SourceName(self.source or CLUSTER), idle_after_s=self._idle_after_s())

    def admission_config(self) -> AdmissionConfig:
        """The config of admission. Raises ValueError."""
        return like(
            AdmissionConfig,
            self,
            exempt_namespaces=frozenset({*self.exempt_namespaces, self.namespace}),
            env_allowed=frozenset(self.env_allowed),
            hand_over="dra" if self.hand_over == "dra" else "tickets",
        )


def address_of(text: str, name: str) -> tuple[str, int]:
    """Host and port of HOST:PORT. Raises ValueError, naming the setting `name`."""
    try:
        return addresses.host_and_port(text)
    except ValueError as error:
        raise ValueError(f"{name} = {text!r}: {error}") from error
