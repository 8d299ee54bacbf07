"""
Addresses of a cluster, all in namespaces of its own: 172.30.0.0/24 for nodes, 10.244.N.0/24 for node N's pods.

Machines hang on a bridge in the control plane's box; pods hang on a bridge in their node's.
"""

import json
from collections.abc import Sequence

from cluster.harness.box import Box

FABRIC = "fabric"
SERVICES = "10.96.0.0/16"
API_SERVICE = "10.96.0.1"
DNS_SERVICE = "10.96.0.10"
PODS = "10.244.0.0/16"
DOMAIN = "cluster.local"
TUNABLES = {
    "net/ipv4/ip_forward": "1",
    "net/ipv4/conf/all/rp_filter": "0",
    "net/ipv4/conf/default/rp_filter": "0",
    "net/bridge/bridge-nf-call-iptables": "1",
    "net/ipv6/conf/all/disable_ipv6": "1",
}
"""Pods of one node that meet behind a Service pass its bridge, whose packets kube-proxy's rules must see."""


def address_of(number: int) -> str:
    """Of a machine: number 0 is the control plane."""
    return f"172.30.0.{10 + number}"


def pods_of(number: int) -> str:
    """Its pods' addresses."""
    return f"10.244.{number}.0/24"


def make_fabric(control_plane: Box) -> None:
    """The bridge between machines, with the control plane's address on it."""
    control_plane.run(
        "sh",
        "-ec",
        f"ip link add {FABRIC} type bridge; ip addr add {address_of(0)}/24 dev {FABRIC}; ip link set {FABRIC} up",
    )


def connect(control_plane: Box, box: Box, number: int) -> None:
    """Plug a machine in."""
    control_plane.run(
        "sh",
        "-ec",
        f"ip link delete m{number} 2>/dev/null || true; ip link add m{number} type veth peer name m{number}p; "
        f"ip link set m{number} master {FABRIC} up",
    )
    control_plane.hand_link(f"m{number}p", box)
    box.run(
        "sh",
        "-ec",
        f"ip link set m{number}p name eth0; ip addr add {address_of(number)}/24 dev eth0; ip link set eth0 up",
    )


def route(box: Box, number: int, numbers: Sequence[int]) -> None:
    """Ways to the pods of all other machines."""
    ways = [f"{pods_of(each)} via {address_of(each)}" for each in numbers if each != number]
    # A Service's address is rewritten on the way out, but only a packet that has a way is sent.
    ways.append(f"{SERVICES} dev {FABRIC if number == 0 else 'eth0'}")
    box.run("sh", "-ec", "; ".join(f"ip route replace {way}" for way in ways))


POLICY_CHAINS = ("KUBE-ROUTER-", "KUBE-NWPLCY-", "KUBE-POD-FW-")
"""How the names of chains begin that enforce network policies."""


def without_policies(rules: str) -> str:
    """
    What `iptables-restore --noflush` takes to remove every chain of POLICY_CHAINS and no other.

    rules: the table `filter` as iptables-save writes it.
    """
    chains = [
        line[1:].split()[0]
        for line in rules.splitlines()
        if line.startswith(tuple(f":{each}" for each in POLICY_CHAINS))
    ]
    jumps = [
        line.replace("-A", "-D", 1)
        for line in rules.splitlines()
        if line.startswith("-A ")
        and not line[3:].startswith(POLICY_CHAINS)
        and any(f"-j {each}" in line for each in POLICY_CHAINS)
    ]
    removals = [f"-F {each}" for each in chains] + [f"-X {each}" for each in chains]
    return "\n".join(["*filter", *jumps, *removals, "COMMIT", ""])


def conflist(number: int) -> str:
    """What containerd does for the network of a pod."""
    return json.dumps(
        {
            "cniVersion": "1.0.0",
            "name": "pods",
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": "cni0",
                    "isGateway": True,
                    "hairpinMode": True,
                    "ipMasq": False,
                    "ipam": {
                        "type": "host-local",
                        "ranges": [[{"subnet": pods_of(number)}]],
                        "routes": [{"dst": "0.0.0.0/0"}],
                        "dataDir": "/var/lib/cni/networks",
                    },
                },
                {"type": "portmap", "capabilities": {"portMappings": True}},
            ],
        }
    )
