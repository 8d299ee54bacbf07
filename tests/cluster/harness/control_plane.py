"""etcd, API server, controller-manager and scheduler, as processes of the control plane's box."""

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cluster.harness.box import Box, BoxError
from cluster.harness.certificates import Authority, Pair
from cluster.harness.network import API_SERVICE, DOMAIN, SERVICES, address_of

PORT = 6443
NODE_GRACE_S = 40
"""A node whose kubelet has been silent for so long is not ready."""
READY_S = 90.0
ROUTER = "system:kube-router"
KUBELET_CLIENT = "kube-apiserver-kubelet-client"
AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}
"""Who asked for what, without bodies: what a benchmark counts, and what a test of rights reads."""


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """Started in order; each step returns when its component answers."""

    box: Box
    authority: Authority
    binaries: Mapping[str, Path]

    @property
    def server(self) -> str:
        """As machines of the cluster reach it."""
        return f"https://{address_of(0)}:{PORT}"

    @property
    def kubeconfig(self) -> Path:
        """Of a cluster administrator in its own network, by loopback."""
        return self.folder / "loopback.kubeconfig"

    @property
    def folder(self) -> Path:
        """Kubeconfigs, and data of etcd."""
        return self.box.folder

    def prepare(self) -> None:
        """Certificates and configuration."""
        self.authority.make()
        names = [
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            f"kubernetes.default.svc.{DOMAIN}",
            "localhost",
        ]
        self.authority.issue(
            "apiserver", "kube-apiserver", names=names, addresses=["127.0.0.1", address_of(0), API_SERVICE]
        )
        self.authority.issue("front-proxy-client", "front-proxy-client")
        self.authority.issue("kubelet-client", KUBELET_CLIENT, groups=["system:masters"])
        (self.folder / "audit.json").write_text(json.dumps(AUDIT))
        for file, user, groups in (
            ("admin", "kubernetes-admin", ["system:masters"]),
            ("scheduler", "system:kube-scheduler", []),
            ("controller-manager", "system:kube-controller-manager", []),
            ("proxy", "system:kube-proxy", []),
            ("router", ROUTER, []),
        ):
            pair = self.authority.issue(file, user, groups=groups)
            self.authority.kubeconfig(self.folder / f"{file}.kubeconfig", self.server, user, pair)
            if file == "admin":
                self.authority.kubeconfig(self.kubeconfig, f"https://127.0.0.1:{PORT}", user, pair)

    def start(self) -> None:
        """All four. Raises BoxError with the log of what did not come up."""
        self.start_etcd()
        self.start_api_server()
        self.start_controllers()

    def start_etcd(self) -> None:
        """On loopback; it does not sync, since no cluster outlives its machine."""
        self.box.spawn(
            "etcd",
            [
                self.binaries["etcd"],
                f"--data-dir={self.folder}/etcd",
                "--listen-client-urls=http://127.0.0.1:2379",
                "--advertise-client-urls=http://127.0.0.1:2379",
                "--listen-peer-urls=http://127.0.0.1:2380",
                "--initial-advertise-peer-urls=http://127.0.0.1:2380",
                "--initial-cluster=default=http://127.0.0.1:2380",
                "--unsafe-no-fsync",
                "--watch-progress-notify-interval=5s",
                "--log-level=warn",
            ],
        )
        self._wait("etcd", lambda: "true" in self._get("http://127.0.0.1:2379/health"))

    def start_api_server(self) -> None:
        """With RBAC, Node authorizer, NodeRestriction and an audit log; ready when it says so."""
        pki = self.authority.folder
        self.box.spawn(
            "kube-apiserver",
            [
                self.binaries["kube-apiserver"],
                "--etcd-servers=http://127.0.0.1:2379",
                f"--advertise-address={address_of(0)}",
                f"--secure-port={PORT}",
                f"--tls-cert-file={pki}/apiserver.crt",
                f"--tls-private-key-file={pki}/apiserver.key",
                f"--client-ca-file={pki}/ca.crt",
                f"--requestheader-client-ca-file={pki}/ca.crt",
                "--requestheader-allowed-names=front-proxy-client",
                "--requestheader-username-headers=X-Remote-User",
                "--requestheader-group-headers=X-Remote-Group",
                "--requestheader-extra-headers-prefix=X-Remote-Extra-",
                f"--proxy-client-cert-file={pki}/front-proxy-client.crt",
                f"--proxy-client-key-file={pki}/front-proxy-client.key",
                f"--kubelet-client-certificate={pki}/kubelet-client.crt",
                f"--kubelet-client-key={pki}/kubelet-client.key",
                "--kubelet-preferred-address-types=InternalIP",
                f"--service-account-issuer=https://kubernetes.default.svc.{DOMAIN}",
                f"--service-account-key-file={pki}/sa.pub",
                f"--service-account-signing-key-file={pki}/sa.key",
                f"--service-cluster-ip-range={SERVICES}",
                "--authorization-mode=Node,RBAC",
                "--enable-admission-plugins=NodeRestriction",
                "--allow-privileged=true",
                f"--audit-policy-file={self.folder}/audit.json",
                f"--audit-log-path={self.folder}/audit.log",
                "--profiling=false",
            ],
        )
        self._wait("kube-apiserver", lambda: self._api("/readyz").strip() == "ok")

    def start_controllers(self, *, client_qps: int | None = None) -> None:
        """
        Controller-manager and scheduler; ready when the namespace `default` has its account.

        client_qps: requests a second that each of their clients may make; else their own limits, 20 and 50.
        """
        pki = self.authority.folder
        limits = [f"--kube-api-qps={client_qps}", f"--kube-api-burst={client_qps}"] if client_qps else []
        self.box.spawn(
            "kube-controller-manager",
            [
                self.binaries["kube-controller-manager"],
                *self._kubeconfigs("controller-manager"),
                f"--root-ca-file={pki}/ca.crt",
                f"--service-account-private-key-file={pki}/sa.key",
                f"--cluster-signing-cert-file={pki}/ca.crt",
                f"--cluster-signing-key-file={pki}/ca.key",
                f"--node-monitor-grace-period={NODE_GRACE_S}s",
                "--use-service-account-credentials=true",
                *limits,
            ],
        )
        self.box.spawn("kube-scheduler", [self.binaries["kube-scheduler"], *self._kubeconfigs("scheduler"), *limits])
        path = "/api/v1/namespaces/default/serviceaccounts/default"
        self._wait("kube-controller-manager", lambda: '"uid"' in self._api(path))

    def restart_controllers(self, *, client_qps: int | None = None) -> None:
        """As `start_controllers`, with these limits."""
        for name in ("kube-scheduler", "kube-controller-manager"):
            self.box.end(name)
        self.start_controllers(client_qps=client_qps)

    def kubelet_pair(self, node: str) -> Pair:
        """The identity of a node."""
        return self.authority.issue(f"node-{node}", f"system:node:{node}", groups=["system:nodes"])

    def _kubeconfigs(self, file: str) -> list[str]:
        path = self.folder / f"{file}.kubeconfig"
        options = [f"--{each}kubeconfig={path}" for each in ("", "authentication-", "authorization-")]
        return [
            *options,
            "--bind-address=127.0.0.1",
            f"--cert-dir={self.folder}/{file}-certificates",
            "--leader-elect=false",
        ]

    def _api(self, path: str) -> str:
        kubeconfig = self.folder / "admin.kubeconfig"
        return self.box.run(self.binaries["kubectl"], f"--kubeconfig={kubeconfig}", "get", "--raw", path, check=False)

    def _get(self, url: str) -> str:
        script = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=2).read().decode())"
        return self.box.run(sys.executable, "-c", script, url, check=False)

    def _wait(self, name: str, is_ready: Callable[[], bool]) -> None:
        end = time.monotonic() + READY_S
        while not is_ready():
            process = self.box.processes.get(name)
            if process is None or not process.is_alive() or time.monotonic() > end:
                raise BoxError(f"{name} did not become ready:\n{self.box.log(name)}")
            time.sleep(0.1)
