"""Members of an installation without Kubernetes: services, people, nodes; their folders and settings."""

from collections.abc import Iterable
from dataclasses import dataclass

from sluice.contracts.bus.nats_permissions import Permissions, certificate_name, permissions_of
from sluice.contracts.bus.streams import Role
from sluice.contracts.ids import NodeName
from sluice.contracts.rpc_permissions import Caller, dns_name, node_dns_name

BUS, BUS_CA, RPC, RPC_CA, ENVIRONMENT = "bus.pem", "bus-ca.crt", "rpc.pem", "rpc-ca.crt", "sluice.env"
NODES = "nodes"
_CALLERS = {caller.value: caller for caller in Caller}


@dataclass(frozen=True, slots=True)
class CredentialHolder:
    """One user of the bus, and its gRPC identity, if any."""

    role: Role
    node: NodeName | None = None
    calls_as: Caller | None = None
    """Its gRPC identity if it is not its role's namesake: the name of a folder."""

    @property
    def folder(self) -> str:
        """Folder of its files below the installation's."""
        if self.calls_as is not None:
            return self.calls_as.value
        return self.role.value if self.node is None else f"{NODES}/{self.node}"

    @property
    def rights(self) -> Permissions:
        """Its role on the bus."""
        return permissions_of(self.role, self.node)

    @property
    def bus_name(self) -> str:
        """The name in its certificate for the bus."""
        return certificate_name(self.role, self.node)

    @property
    def caller(self) -> Caller | None:
        """Its gRPC identity, if it calls or serves there; agents are known by their node."""
        return self.calls_as or _CALLERS.get(self.role.value)

    @property
    def rpc_name(self) -> str:
        """The name in its certificate for gRPC; empty without one."""
        if self.node is not None:
            return node_dns_name(self.node)
        return dns_name(self.caller) if self.caller is not None else ""

    def environment(self, url: str, at: str) -> str:
        """Its settings, for files in the folder `at`. Holds no secret."""
        lines = {"SLUICE_NATS_URL": url}
        if self.node is None:
            lines["SLUICE_NATS_USER"] = self.rights.user
        bus, rpc = f"{at}/{BUS}", f"{at}/{RPC}"
        lines |= {
            "SLUICE_NATS_CERTIFICATE_FILE": bus,
            "SLUICE_NATS_KEY_FILE": bus,
            "SLUICE_NATS_CA_FILE": f"{at}/{BUS_CA}",
        }
        if self.rpc_name:
            lines |= {
                "SLUICE_GRPC_CERTIFICATE_FILE": rpc,
                "SLUICE_GRPC_KEY_FILE": rpc,
                "SLUICE_GRPC_CA_FILE": f"{at}/{RPC_CA}",
            }
        return "".join(f"{name}={value}\n" for name, value in lines.items())


def members(nodes: Iterable[NodeName]) -> list[CredentialHolder]:
    """Every service, every kind of person, the page, the agents of these nodes. Raises ValueError for a bad name."""
    made = [CredentialHolder(role) for role in Role if role is not Role.NODE_AGENT]
    made.append(
        CredentialHolder(Role.CONSOLE, calls_as=Caller.WEB)
    )  # it reads the bus as the console does, and may call less
    made += [CredentialHolder(Role.NODE_AGENT, node) for node in sorted(set(nodes))]
    for member in made:
        _ = member.rights  # refuses a name that no node can have
        if any(not label or len(label) > 63 for label in member.bus_name.split(".")):  # RFC 1035
            raise ValueError(f"{member.node}: a node's name is labels of at most 63 letters, digits and '-'")
    return made
