"""Every listener of every service, and its address: none is open to the network by default."""

import ast
import ipaddress
from inspect import signature
from pathlib import Path

import pytest

from sluice.runtime.settings import load
from sluice_allocator.settings import AllocatorSettings
from sluice_console.__main__ import web_command
from sluice_console.shell.web.sidecar import take
from sluice_inventory.settings import InventorySettings
from sluice_node_agent.settings import NodeAgentSettings
from sluice_pod_watcher.settings import PodWatcherSettings

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = {
    "allocator": AllocatorSettings,
    "inventory": InventorySettings,
    "node-agent": NodeAgentSettings,
    "pod-watcher": PodWatcherSettings,
}
LISTENERS = {
    "allocator": {"grpc_address", "health_address", "metrics_address"},
    "inventory": {"grpc_address", "health_address", "metrics_address"},
    "node-agent": {"grpc_address", "health_address", "metrics_address"},
    "pod-watcher": {"metrics_address", "watch_health_address", "webhook_address"},
}
"""Every setting with a listening address. The control sockets are files in a folder of their owner's."""
OPENERS = {
    "services/console/sluice_console/shell/web/listen_address.py": "--listen of `sluice web`, --web of `sluice up`",
    "libs/sluice/runtime/addresses.py": "what listens everywhere, for those below that are set to",
    "libs/sluice/runtime/prometheus/http_page.py": "metrics_address",
    "libs/sluice/runtime/nats_server/free_ports.py": "free ports of the loopback, for the broker of `sluice up`",
    "libs/sluice/runtime/grpc/transport.py": "grpc_address, health_address, and Unix sockets",
    "services/node-agent/sluice_node_agent/simulated/mps_daemon.py": "Unix sockets of the stand-in for MPS",
    "services/node-agent/sluice_node_agent/shell/quota/sockets.py": "Unix sockets of the time quota",
    "services/pod-watcher/sluice_pod_watcher/shell/http_server.py": "webhook_address, watch_health_address",
}
"""Every module that opens a listener."""
_OPENING = {"add_insecure_port", "add_secure_port", "create_server", "create_unix_server", "start_unix_server"}


def settings_of(service: str, **variables: str) -> object:
    """A service's settings with only the required ones set."""
    needed = {"SLUICE_NODE_AGENT_NODES": "gpu-1", "SLUICE_POD_WATCHER_ROLE": "watch"}
    return load(SETTINGS[service], service=service, environ={**needed, **variables})


def is_local(address: str) -> bool:
    """Whether only this machine reaches an address (`host:port`; empty is nowhere)."""
    host = address.rpartition(":")[0].strip("[]")
    return not address or host == "localhost" or (host != "" and ipaddress.ip_address(host).is_loopback)


def test_every_listener_is_known():
    """A listener that is missing from the list is never tested."""
    for service, settings in SETTINGS.items():
        assert {name for name in settings.__struct_fields__ if name.endswith("address")} == LISTENERS[service]


@pytest.mark.parametrize(("service", "name"), [(each, name) for each in LISTENERS for name in sorted(LISTENERS[each])])
def test_a_listener_is_on_the_loopback_by_default(service, name):
    """An installation without addresses is reachable from its own machine only."""
    assert is_local(getattr(settings_of(service), name))
    variable = f"SLUICE_{service.replace('-', '_').upper()}_{name.upper()}"
    assert getattr(settings_of(service, **{variable: "192.0.2.1:9999"}), name) == "192.0.2.1:9999"


def test_the_page_is_this_machines_by_default():
    """The page shows whose pods are where."""
    assert is_local(signature(web_command).parameters["listen"].default)
    usual = take("")
    usual.release()
    assert is_local(usual.address)


def test_no_other_module_opens_a_listener():
    """No firewall knows of a port that is opened beside the settings."""
    found = set()
    for path in [*ROOT.glob("libs/**/*.py"), *ROOT.glob("services/**/*.py")]:
        calls = (each for each in ast.walk(ast.parse(path.read_text())) if isinstance(each, ast.Call))
        if any(opens(each) for each in calls):
            found.add(str(path.relative_to(ROOT)))
    assert found == set(OPENERS)


def opens(call: ast.Call) -> bool:
    """Whether a call opens a listener: of asyncio, of gRPC, or of a socket, whose `bind` takes one address."""
    function = call.func
    if not isinstance(function, ast.Attribute):
        return False
    if function.attr in {"bind", "start_server"}:
        owner = function.value.id if isinstance(function.value, ast.Name) else ""
        return owner == "asyncio" if function.attr == "start_server" else len(call.args) == 1 and owner != "mounting"
    return function.attr in _OPENING
