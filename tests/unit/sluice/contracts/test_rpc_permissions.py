"""Which caller may use which gRPC method: one table of all methods."""

import pytest

from sluice.contracts.ids import NodeName
from sluice.contracts.pb import agent_pb2, allocator_pb2, health_pb2, inventory_pb2
from sluice.contracts.rpc_permissions import ALLOWED_CALLERS, Caller, deny_reason, dns_name, node_dns_name

AGENT, CONTROL = "/sluice.v1.AgentService", "/sluice.v1.NodeControlService"
INVENTORY, ALLOCATOR = "/sluice.v1.InventoryService", "/sluice.v1.AllocatorService"
PEOPLE = {"console", "operator"}
EXPECTED = {
    f"{AGENT}/GetInventory": {"inventory", *PEOPLE},
    f"{AGENT}/GetHealth": {"inventory", *PEOPLE},
    f"{AGENT}/GetUsage": {"web", "inventory", *PEOPLE},
    f"{CONTROL}/ReleaseQuarantine": set(),
    **{f"{INVENTORY}/{method}": PEOPLE for method in ("ListGpus", "GetAllocationMap", "GetNode", "Watch")},
    f"{INVENTORY}/Report": {"web", *PEOPLE},
    **{f"{ALLOCATOR}/{method}": PEOPLE for method in ("Simulate", "Explain", "Adjust", "Consolidate")},
    "/grpc.health.v1.Health/Check": {"allocator", "inventory", "web", *PEOPLE},
}
"""Repeated by hand: a change of rights is made in two places, or it is a mistake."""
WHO = {name: f"{name}.sluice.internal" for name in ("allocator", "inventory", "console", "operator", "web")} | {
    "an agent": "gpu-1.node.sluice.internal",
    "a node called inventory": "inventory.node.sluice.internal",
    "another domain": "inventory.example.internal",
    "a name with more in front": "x.inventory.sluice.internal",
    "wildcard": "*.sluice.internal",
    "no name": "",
}


def test_every_method_has_its_callers_and_no_other():
    """A new method has no callers until its permissions name them."""
    served = {
        f"/{service.full_name}/{method.name}"
        for file in (agent_pb2, allocator_pb2, inventory_pb2, health_pb2)
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    assert set(ALLOWED_CALLERS) == set(EXPECTED) == served


@pytest.mark.parametrize("method", [*EXPECTED, f"{AGENT}/Reboot", "/sluice.v1.Agent/GetInventory", ""])
@pytest.mark.parametrize("who", WHO)
def test_each_caller_has_the_rights_it_needs_and_no_more(who, method):
    assert (deny_reason([WHO[who]], method) == "") is (who in EXPECTED.get(method, set()))


def test_a_refusal_says_who_may_and_who_asked():
    """The operator must find out which certificate is mounted where."""
    assert deny_reason(["gpu-1.node.sluice.internal"], f"{ALLOCATOR}/Explain") == (
        "/sluice.v1.AllocatorService/Explain may be called by console.sluice.internal or operator.sluice.internal; "
        "the certificate of this caller says gpu-1.node.sluice.internal"
    )
    assert "the certificate of this caller says no DNS name" in deny_reason([], f"{ALLOCATOR}/Explain")
    assert "may be called by none over the network" in deny_reason(["x"], f"{CONTROL}/ReleaseQuarantine")
    assert len(deny_reason(["x" * 10_000], f"{ALLOCATOR}/Explain")) < 600


def test_no_node_has_the_name_of_a_service():
    services = {dns_name(caller) for caller in Caller}
    for node in ("inventory", "inventory.node", "node", "a.inventory"):
        assert node_dns_name(NodeName(node)) not in services
        assert node_dns_name(NodeName(node)).removesuffix(".node.sluice.internal") == node
