"""containerd, kubelet and kube-proxy, as processes of a node's box."""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.harness.box import Box, BoxError
from cluster.harness.control_plane import ControlPlane
from cluster.harness.network import DNS_SERVICE, DOMAIN, PODS, SERVICES, address_of, conflist, without_policies

READY_S = 180.0
IMPORT_S = 300.0
POLICIES = "kube-router"
SOCKET = "/run/containerd/containerd.sock"
SANDBOX = "localhost/pause:1"
KEPT = (
    "/var/lib/containerd",
    "/var/lib/kubelet",
    "/var/lib/cni",
    "/var/lib/sluice",
    "/var/lib/volumes",
    "/var/log/pods",
    "/var/log/containers",
)
"""What a machine keeps over a reboot. Its /run, /tmp, /etc and processes are new."""


@dataclass(frozen=True, slots=True)
class Node:
    """A machine that runs pods. number: 0 is the control plane's machine."""

    box: Box
    number: int
    control_plane: ControlPlane
    binaries: Mapping[str, Path]

    @property
    def name(self) -> str:
        """Of the Node object, and of the machine."""
        return self.box.name

    @staticmethod
    def files(number: int) -> dict[str, str]:
        """What every boot puts below /etc."""
        return {"/etc/cni/net.d/10-pods.conflist": conflist(number), "/etc/resolv.conf": "options ndots:5\n"}

    def prepare(self) -> None:
        """Identity and configuration, once: they outlive a reboot."""
        pair = self.control_plane.kubelet_pair(self.name)
        authority = self.control_plane.authority
        authority.kubeconfig(
            self._file("kubelet.kubeconfig"), self.control_plane.server, f"system:node:{self.name}", pair
        )
        self._file("kubelet.json").write_text(json.dumps(self._kubelet(authority.pair.certificate)))
        self._file("proxy.json").write_text(json.dumps(self._proxy()))
        self._file("containerd.toml").write_text(self._containerd())

    def start(self) -> None:
        """All three. Raises BoxError with the log of what did not come up."""
        self.start_containerd()
        self.start_kubelet()
        self.start_proxy()

    def start_containerd(self) -> None:
        """With its runtime and network plugins from where the binaries lie."""
        path = ":".join(sorted({str(each.parent) for each in self.binaries.values()}))
        search = f"{path}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        self.box.spawn(
            "containerd", [self.binaries["containerd"], "--config", self._file("containerd.toml")], {"PATH": search}
        )
        self._wait("containerd", [*self._ctr(), "version"])

    def start_kubelet(self) -> None:
        """Ready when its health endpoint answers; whether the Node is Ready is the cluster's business."""
        self.box.spawn(
            "kubelet",
            [
                self.binaries["kubelet"],
                f"--config={self._file('kubelet.json')}",
                f"--kubeconfig={self._file('kubelet.kubeconfig')}",
                f"--hostname-override={self.name}",
                f"--node-ip={address_of(self.number)}",
            ],
        )
        script = (
            "import urllib.request as r; assert r.urlopen('http://127.0.0.1:10248/healthz', timeout=2).status == 200"
        )
        self._wait("kubelet", [sys.executable, "-c", script])

    def start_proxy(self) -> None:
        """Services of the cluster, by iptables."""
        self.box.spawn("kube-proxy", [self.binaries["kube-proxy"], f"--config={self._file('proxy.json')}"])

    def start_policies(self, router: Path) -> None:
        """kube-router's enforcer of NetworkPolicy objects, by iptables and ipset; returns after its first rules."""
        self.box.spawn(
            POLICIES,
            [
                router,
                f"--kubeconfig={self.control_plane.folder / 'router.kubeconfig'}",
                f"--hostname-override={self.name}",
                f"--service-cluster-ip-range={SERVICES}",
            ],
        )
        self._wait(POLICIES, ["iptables", "--wait", "--list-rules", "KUBE-NWPLCY-DEFAULT"])

    def end_policies(self) -> None:
        """Nothing of what it has set is left."""
        self.box.end(POLICIES)
        script = "iptables-restore --wait --noflush; for each in $(ipset list -n); do ipset destroy $each; done"
        rules = without_policies(self.box.run("iptables-save", "-t", "filter"))
        file = self._file("without-policies.rules")
        file.write_text(rules)
        self.box.run("sh", "-ec", script, stdin=file)

    def import_images(self, archive: Path) -> None:
        """As a registry would have brought them."""
        self.box.run(*self._ctr(), "images", "import", "--local", "-", timeout_s=IMPORT_S, stdin=archive)

    def tag_image(self, name: str, also: str) -> None:
        """Give an image that is there another name."""
        self.box.run(*self._ctr(), "images", "tag", "--force", name, also)

    def _ctr(self) -> list[str | Path]:
        return [self.binaries["ctr"], "--address", SOCKET, "--namespace", "k8s.io"]

    def _file(self, name: str) -> Path:
        return self.box.folder / name

    def _wait(self, name: str, command: Sequence[str | Path]) -> None:
        end = time.monotonic() + READY_S
        while True:
            process = self.box.processes.get(name)
            if process is None or not process.is_alive() or time.monotonic() > end:
                raise BoxError(f"{self.name}: {name} did not become ready:\n{self.box.log(name)}")
            try:
                self.box.run(*command, timeout_s=10)
            except BoxError:
                time.sleep(0.1)
            else:
                return

    def _kubelet(self, authority: Path) -> dict[str, object]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": "0.0.0.0",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(authority)},
            },
            "authorization": {"mode": "Webhook"},
            "cgroupDriver": "cgroupfs",
            "clusterDNS": [DNS_SERVICE],
            "clusterDomain": DOMAIN,
            "containerRuntimeEndpoint": f"unix://{SOCKET}",
            "evictionHard": {"memory.available": "1Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "failCgroupV1": False,
            "failSwapOn": False,
            "imageGCHighThresholdPercent": 100,
            "resolvConf": "/etc/resolv.conf",
            "serverTLSBootstrap": False,
            "staticPodPath": "/etc/kubernetes/manifests",
        }

    def _proxy(self) -> dict[str, object]:
        return {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "iptables",
            "clientConnection": {"kubeconfig": str(self.control_plane.folder / "proxy.kubeconfig")},
            "clusterCIDR": PODS,
            "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
            "hostnameOverride": self.name,
        }

    def _containerd(self) -> str:
        folders = sorted({str(self.binaries["bridge"].parent)})
        return f"""version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
oom_score = 0
disabled_plugins = ["io.containerd.nri.v1.nri"]

[grpc]
address = "{SOCKET}"

[plugins."io.containerd.cri.v1.images"]
snapshotter = "overlayfs"

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{SANDBOX}"

[plugins."io.containerd.cri.v1.runtime"]
enable_cdi = true
cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
disable_apparmor = true
restrict_oom_score_adj = true

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = {json.dumps(folders)}
conf_dir = "/etc/cni/net.d"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
SystemdCgroup = false
"""
