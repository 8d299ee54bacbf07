"""Controls between our own services, and against who poses as one: on the bus, over gRPC, on a node, in a cluster."""

import re
from dataclasses import replace
from pathlib import Path

import msgspec
import yaml
from deploy_check import KUBERNETES
from factories.broker.stream_model import matches
from message_examples import EXAMPLES
from security.controls import changed, control, refused, shipped

from sluice.contracts.bus.codec import SCHEMA, Undecodable, decode, encode
from sluice.contracts.bus.events import Stream
from sluice.contracts.bus.nats_permissions import AGENTS_ACCOUNT, Permissions, of_any_agent, permissions_of
from sluice.contracts.bus.store_sizes import STORE_BYTES_MAX
from sluice.contracts.bus.streams import STREAMS, Role
from sluice.contracts.ids import NodeName
from sluice.contracts.messages import Envelope, SliceReady
from sluice.contracts.rpc_permissions import ALLOWED_CALLERS, Caller, deny_reason
from sluice.runtime.addresses import is_own_name
from sluice.runtime.grpc import transport
from sluice.runtime.grpc.security import LOOPBACK
from sluice.runtime.logs import bound_values
from sluice.runtime.nats.wire_format import read_stored
from sluice.runtime.nats_server.users import DENY_ALL, CertifiedUser, authorization
from sluice.runtime.settings import CommonSettings, SettingsError, load
from sluice_console.core.web.request_check import denied
from sluice_node_agent.preflight import environment
from sluice_node_agent.preflight.findings import version_of
from sluice_node_agent.shell.journal.lines import DamagedError, Lines, read_lines
from sluice_pod_watcher.core.bus_access import Namespaces, TokenOwner, rights_on_bus

NODE = NodeName("gpu-1")
_EVERYBODY = dict.fromkeys(ALLOWED_CALLERS, frozenset(Caller))


@control(
    "an agent writes only about its own node",
    "sluice.contracts.bus.nats_permissions._agents",
    lambda *_: ["sluice.>", "$JS.>"],
)
def _agents_rights() -> None:
    allowed = permissions_of(Role.NODE_AGENT, NODE).publish
    for subject in (
        "sluice.slice.gpu-2.a1",
        "sluice.node.gpu-2",
        "sluice.ledger.gpu-1.a1",
        "$JS.API.STREAM.DELETE.BOOK",
    ):
        assert not any(matches(each, subject) for each in allowed), f"an agent may write {subject}"
    assert any(matches(each, "sluice.slice.gpu-1.a1") for each in allowed), "and its own it may not"


@control(
    "a token logs in only its pod's user, on its node",
    f"{__name__}.rights_on_bus",
    lambda _owner, asked, _where: permissions_of(Role.NODE_AGENT, NodeName(asked.removeprefix("node-agent."))),
)
def _stolen_token() -> None:
    owner = TokenOwner(user="system:serviceaccount:sluice-nodes:sluice-node-agent", pod="agent", node="gpu-1")
    assert rights_on_bus(owner, "node-agent.gpu-1", Namespaces()) == permissions_of(Role.NODE_AGENT, NODE)
    for user in ("node-agent.gpu-2", "allocator"):
        assert isinstance(rights_on_bus(owner, user, Namespaces()), str), f"a token of gpu-1 logs in as {user}"


@control("what one agent stores is bounded", f"{__name__}.of_any_agent", lambda: _agent().publish)
def _flood() -> None:
    kept = {each.stream: each.config(first_sequence=1, replicas=1) for each in STREAMS}
    state, history = kept[Stream.STATE], kept[Stream.HISTORY]
    assert state["discard"] == "new", "a full STATE forgets other nodes"
    assert state["max_bytes"] + history["max_bytes"] < STORE_BYTES_MAX, "BOOK has no room of its own"
    assert not any(each.startswith("hist.") for each in of_any_agent()), "an agent pushes out the history of others"


@control("log lines have a size and a rate", f"{__name__}.bound_values", lambda _logger, _method, event: event)
def _long_line() -> None:
    line = bound_values(None, "", {"event": "x", "why": "y" * 100_000})
    assert len(line["why"]) < 10_000, "one message makes a line as long in every reader"


@control("metrics too", f"{__name__}.is_own_name", lambda *_: True)
def _metrics_of_another_site() -> None:
    assert not is_own_name("evil.example:9430", "gpu-1"), "a site reads metrics by DNS rebinding"


@control(
    "no reply to an agent passes for another's message",
    f"{__name__}._agent",
    lambda: replace(permissions_of(Role.NODE_AGENT, NODE), account="SLUICE"),
)
def _agents_account() -> None:
    text = "\n".join(authorization([CertifiedUser(permissions_of(Role.ALLOCATOR), "a"), CertifiedUser(_agent(), "b")]))
    shared, _, own = text.partition(f"  {AGENTS_ACCOUNT} {{")
    assert 'user: "a"' in shared
    assert 'user: "b"' not in shared, "an agent is where the streams are, and has answers written there"
    imported = set(re.findall(r'account: SLUICE, subject: "([^"]+)"', own))
    assert imported - {DENY_ALL} == set(of_any_agent()), "the agents' account reaches another subject"


def _agent() -> Permissions:
    return permissions_of(Role.NODE_AGENT, NODE)


@control("messages match their subjects", "sluice.runtime.nats.wire_format.schema_violation", lambda *_: "")
def _another_nodes_word() -> None:
    word = next(each for each in EXAMPLES if isinstance(each, SliceReady))
    sent = Envelope(id="i", operation="o", request="r", schema=SCHEMA, time="t", message=word)
    found = read_stored("sluice.slice.gpu-2.another", 1, encode(sent)).entry
    assert found.message is None, "a word about one slice was read as a word about another"


@control("no plain text over a network", "sluice.runtime.grpc.transport.is_loopback", lambda _: True)
def _plain_text() -> None:
    with refused(transport.PlainTextError, "plain text over a network"):
        transport._speaks_tls("192.0.2.1:9410", LOOPBACK)


@control("callers have rights", "sluice.contracts.rpc_permissions.ALLOWED_CALLERS", _EVERYBODY)
def _caller() -> None:
    for method, who in (
        ("/sluice.v1.AgentService/GetInventory", "gpu-2.node.sluice.internal"),
        ("/sluice.v1.AllocatorService/Adjust", "inventory.sluice.internal"),
        ("/sluice.v1.AllocatorService/Adjust", "web.sluice.internal"),
        ("/sluice.v1.NodeControlService/ReleaseQuarantine", "operator.sluice.internal"),
    ):
        assert deny_reason([who], method), f"{who} may call {method}"


@control("messages have a size", "sluice.contracts.bus.codec.MESSAGE_BYTES_MAX", 10**9)
def _large_message() -> None:
    envelope = Envelope(id="i", operation="o", request="r", schema=SCHEMA, time="t" * 2_000_000, message=EXAMPLES[0])
    assert isinstance(decode(_bytes_of(envelope)), Undecodable), "a message was parsed that no broker of ours takes"


def _bytes_of(envelope: Envelope) -> bytes:
    """Beside `encode`, which would refuse it."""
    return msgspec.json.encode(envelope)


@control("no secret in any output", "sluice.runtime.settings.holds_credentials", lambda _: False)
def _secret_in_an_address() -> None:
    try:
        load(CommonSettings, service="allocator", environ={"SLUICE_NATS_URL": "nats://me:hunter2@192.0.2.1:4222"})
    except SettingsError as error:
        assert "hunter2" not in str(error), "the sentence repeats the password"  # noqa: PT017
    else:
        raise AssertionError("an address with a password in it was taken, and is shown everywhere")


@control("a damaged journal is not trusted", "sluice_node_agent.shell.journal.lines.zlib.crc32", lambda *_: 7)
def _flipped_bit() -> None:
    written = Lines().next(b'{"type":"tombstone","allocation":"a1","request":"r","revision":2,"cause":"c"}')
    with refused(DamagedError, "a journal with a flipped bit"):
        read_lines(written.replace(b'"revision":2', b'"revision":3'))


@control("known container escapes are reported", "sluice_node_agent.preflight.environment.TOOLKIT_FLOORS", ())
def _toolkit() -> None:
    floors = environment.TOOLKIT_FLOORS
    assert any(version_of("1.17.7") < version_of(floor) and level == "problem" for floor, _, level in floors), (
        "a container toolkit with a known way out is no finding"
    )


# -- as it is shipped ---------------------------------------------------------------------------------------------


@control(
    "services have no privileges",
    f"{__name__}.shipped",
    changed("readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false"),
)
def _least_privilege() -> None:
    for name in ("services/allocator.yaml", "services/inventory.yaml", "services/pod-watcher.yaml"):
        for document in yaml.safe_load_all(shipped(name)):
            for container in (
                document["spec"]["template"]["spec"]["containers"] if document["kind"] == "Deployment" else ()
            ):
                security = container["securityContext"]
                assert security["readOnlyRootFilesystem"] is True, f"{name}: it can change its own programs"
                assert security["capabilities"] == {"drop": ["ALL"]}, f"{name}: it has capabilities"


@control("accounts have no wildcards", f"{__name__}.shipped", changed("verbs:\n", "verbs:\n  - '*'\n"))
def _no_wildcards() -> None:
    rules = [rule for each in yaml.safe_load_all(shipped("rbac.yaml")) for rule in each.get("rules", ())]
    assert rules
    for rule in rules:
        assert "*" not in [*rule["verbs"], *rule["resources"], *rule["apiGroups"]], f"everything: {rule}"
        assert not ("secrets" in rule["resources"] and "list" in rule["verbs"]), "all secrets can be read"


@control(
    "the network is closed", f"{__name__}.shipped", changed("podSelector: {}", "podSelector: {matchLabels: {a: b}}")
)
def _closed_network() -> None:
    policies = [each for each in yaml.safe_load_all(shipped("network-policies.yaml")) if each]
    closed = {each["metadata"]["namespace"] for each in policies if each["spec"]["podSelector"] == {}}
    assert closed == {"sluice-system", "sluice-nodes"}, "any pod of the cluster may connect"


@control("packages are pinned", f"{__name__}._lock", lambda path: path.read_text().replace("--hash=sha256:", "# "))
def _pins() -> None:
    for path in sorted((KUBERNETES.parents[1] / "requirements").glob("*.txt")):
        blocks = [block for block in _lock(path).split("\n") if block and not block.startswith((" ", "#"))]
        assert blocks, f"{path.name} is empty"
        assert all("==" in block for block in blocks), f"{path.name} lets the index choose a version"
        assert _lock(path).count("--hash=sha256:") >= len(blocks), f"{path.name} takes any file of a name"


def _lock(path: Path) -> str:
    return path.read_text()


@control("the page answers its own site only", "sluice_console.core.web.request_check.is_address", lambda _: True)
def _another_site() -> None:
    """A page of another site, under a name that was made to point here, asks for the map."""
    asked = denied(method="GET", path="/api/map", headers={"host": "evil.example"}, hosts=(), is_data=True)
    assert asked is not None, "a name that points here reads the map"
    assert denied(method="POST", path="/", headers={"host": "localhost"}, hosts=(), is_data=False) is not None
