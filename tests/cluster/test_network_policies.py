"""NetworkPolicy objects are enforced where a suite asks for it: else one of ours that forgets a path passes."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from cluster.harness import addons
from cluster.harness.cluster import Cluster
from cluster.harness.network import POLICY_CHAINS, without_policies
from cluster.harness.node import POLICIES

IMAGE, PROGRAM = "localhost/network-test:1", Path("/usr/bin/busybox")
PORT = 8080
WITHIN_S = 60.0
SAVED = """*filter
:INPUT ACCEPT [0:0]
:KUBE-ROUTER-INPUT - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-POD-FW-ABC - [0:0]
-A INPUT -m comment --comment "kube-router netpol - ABC" -j KUBE-ROUTER-INPUT
-A INPUT -s 10.244.1.2/32 -j KUBE-POD-FW-ABC
-A INPUT -j KUBE-SERVICES
-A KUBE-ROUTER-INPUT -d 10.244.1.2/32 -j KUBE-POD-FW-ABC
COMMIT
"""
Json = dict[str, Any]


@pytest.fixture(scope="module")
def people(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A server on worker-1, and a client on each worker, in a namespace of their own."""
    archive = tmp_path_factory.mktemp("image") / "image.tar"
    addons.write_image(IMAGE, PROGRAM, archive)
    cluster.import_images(archive)
    pods = [
        _pod("server", "worker-1", ["httpd", "-f", "-p", str(PORT), "-h", "/"]),
        _pod("near", "worker-1", ["sleep", "3600"], role="friend"),
        _pod("far", "worker-2", ["sleep", "3600"]),
    ]
    pods[0]["spec"]["containers"][0]["readinessProbe"] = {
        "httpGet": {"path": f"/{PROGRAM.name}", "port": PORT},
        "periodSeconds": 1,
        "timeoutSeconds": 5,
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "server"},
        "spec": {"selector": {"name": "server"}, "ports": [{"port": 80, "targetPort": PORT}]},
    }
    cluster.kubectl("create", "namespace", "policed")
    try:
        _apply(cluster, *pods, service)
        _kubectl(cluster, "wait", "--for=condition=Ready", "pod", "--all", f"--timeout={WITHIN_S:.0f}s")
        yield cluster
    finally:
        _kubectl(cluster, "delete", "pods", "--all", "--force", "--grace-period=0")
        cluster.kubectl("delete", "namespace", "policed", timeout_s=120)


@pytest.fixture
def enforced(people: Cluster) -> Iterator[Cluster]:
    """Policies hold for the time of a test, and after it where they did before."""
    was_enforced = people.enforces_network_policies
    people.enforce_network_policies()
    try:
        yield people
    finally:
        _kubectl(people, "delete", "networkpolicy", "--all")
        if not was_enforced:
            people.ignore_network_policies()


def test_deny_all_isolates_and_an_allow_opens_what_it_names(enforced: Cluster) -> None:
    """From the same machine, where packets only pass a bridge, and from another, by address and by Service."""
    direct, service = f"{_address(enforced, 'server')}:{PORT}", _service(enforced)
    for client in ("near", "far"):
        for target in (direct, service):
            _eventually(
                enforced,
                lambda client=client, target=target: _reaches(enforced, client, target),
                f"{client} to {target}",
            )
    _apply(enforced, _policy("deny-all", {"podSelector": {}, "policyTypes": ["Ingress"]}))
    for client in ("near", "far"):
        for target in (direct, service):
            _eventually(
                enforced,
                lambda client=client, target=target: not _reaches(enforced, client, target),
                f"no {client} to {target}",
            )
    allow = {
        "podSelector": {"matchLabels": {"name": "server"}},
        "ingress": [
            {
                "from": [{"podSelector": {"matchLabels": {"role": "friend"}}}],
                "ports": [{"port": PORT, "protocol": "TCP"}],
            }
        ],
    }
    _apply(enforced, _policy("allow-friends", allow))
    for target in (direct, service):
        _eventually(enforced, lambda target=target: _reaches(enforced, "near", target), f"near to {target}")
        assert not _reaches(enforced, "far", target)
    ready = 'jsonpath={.status.conditions[?(@.type=="Ready")].status}'
    assert _kubectl(enforced, "get", "pod", "server", f"--output={ready}") == "True", (
        "the kubelet's own probe was blocked"
    )


def test_a_pod_may_only_leave_to_where_its_egress_allows(enforced: Cluster) -> None:
    """What keeps a node agent from the Internet must be seen to keep it."""
    target = f"{_address(enforced, 'server')}:{PORT}"
    policy = {
        "podSelector": {"matchLabels": {"name": "far"}},
        "policyTypes": ["Egress"],
        "egress": [{"to": [{"ipBlock": {"cidr": "10.96.0.10/32"}}]}],
    }
    _apply(enforced, _policy("only-dns", policy))
    _eventually(enforced, lambda: not _reaches(enforced, "far", target), "the egress is closed")
    assert _reaches(enforced, "near", target)
    _kubectl(enforced, "delete", "networkpolicy", "only-dns")
    _eventually(enforced, lambda: _reaches(enforced, "far", target), "the egress is open again")


def test_nothing_is_left_of_policies_that_are_ignored_again(people: Cluster) -> None:
    """The cluster is shared: a policy left by one suite would close ports in another."""
    was_enforced = people.enforces_network_policies
    people.enforce_network_policies()
    people.ignore_network_policies()
    assert not people.enforces_network_policies
    for node in people.nodes:
        assert not any(each in node.box.run("iptables-save") for each in POLICY_CHAINS)
        assert node.box.run("ipset", "list", "-n") == ""
    if was_enforced:
        people.enforce_network_policies()


def test_only_chains_of_policies_are_removed() -> None:
    """One of kube-proxy's, removed with them, would cut Services off until it writes all of them again."""
    assert without_policies(SAVED).splitlines() == [
        "*filter",
        '-D INPUT -m comment --comment "kube-router netpol - ABC" -j KUBE-ROUTER-INPUT',
        "-D INPUT -s 10.244.1.2/32 -j KUBE-POD-FW-ABC",
        "-F KUBE-ROUTER-INPUT",
        "-F KUBE-POD-FW-ABC",
        "-X KUBE-ROUTER-INPUT",
        "-X KUBE-POD-FW-ABC",
        "COMMIT",
    ]


def _kubectl(cluster: Cluster, *arguments: str, check: bool = True) -> str:
    return cluster.kubectl("--namespace=policed", *arguments, timeout_s=WITHIN_S + 30, check=check)


def _apply(cluster: Cluster, *objects: Mapping[str, Any]) -> None:
    items = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    cluster.kubectl("--namespace=policed", "apply", "--filename=-", stdin=items)


def _pod(name: str, node: str, command: list[str], *, role: str = "other") -> Json:
    container = {"name": "main", "image": IMAGE, "imagePullPolicy": "Never", "command": [f"/{PROGRAM.name}", *command]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"name": name, "role": role}},
        "spec": {
            "nodeName": node,
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "containers": [container],
        },
    }


def _policy(name: str, spec: Json) -> Json:
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": name}, "spec": spec}


def _address(cluster: Cluster, pod: str) -> str:
    return _kubectl(cluster, "get", "pod", pod, "--output=jsonpath={.status.podIP}")


def _service(cluster: Cluster) -> str:
    return _kubectl(cluster, "get", "service", "server", "--output=jsonpath={.spec.clusterIP}") + ":80"


def _reaches(cluster: Cluster, client: str, target: str) -> bool:
    """Whether a connection opens within 3 s; an exec that could not start has another answer."""
    address, _, port = target.partition(":")
    connect = f"/{PROGRAM.name} nc -w 3 {address} {port} </dev/null >/dev/null 2>&1 && echo opened || echo closed"
    said = _kubectl(cluster, "exec", client, "--", f"/{PROGRAM.name}", "sh", "-c", connect).split()[-1]
    assert said in ("opened", "closed")
    return said == "opened"


def _eventually(cluster: Cluster, is_so: Callable[[], bool], what: str) -> None:
    """Fails with what the enforcers wrote last."""
    end = time.monotonic() + WITHIN_S
    while not is_so():
        if time.monotonic() > end:
            logs = (f"{node.name}:\n{node.box.log(POLICIES)}" for node in cluster.nodes)
            raise AssertionError("\n".join((f"not within {WITHIN_S:.0f} s: {what}", *logs)))
