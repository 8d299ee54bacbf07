"""Settings of an agent, and what they may hold."""

import asyncio
import errno
import resource
import subprocess
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import msgspec
import pytest
from structlog.testing import capture_logs

from sluice.contracts.messages import AgentAddress
from sluice.runtime.settings import SettingsError, load
from sluice_node_agent.settings import NodeAgentSettings
from sluice_node_agent.shell import app
from sluice_node_agent.shell.app import FILES_MAX, backends_of, raise_file_limit
from sluice_node_agent.shell.nodes import node_backend as external_programs
from sluice_node_agent.shell.nodes.node_backend import NodeBackendError, find_program, quota_library, toolkit_version
from sluice_node_agent.shell.runner.agent_runner import read_node


def _load(**variables):
    environment = {f"SLUICE_NODE_AGENT_{name.upper()}": value for name, value in variables.items()}
    return load(NodeAgentSettings, service="node-agent", environ=environment)


def test_what_the_core_takes_is_what_was_said():
    settings = _load(keep_warm_s="90", watch_mps_s="2.5", quarantine_after="3")
    config = settings.config()
    assert (config.keep_warm_s, config.watch_mps_s, config.quarantine_after) == (90, 2.5, 3)
    for name in set(type(config).__dataclass_fields__) & set(NodeAgentSettings.__struct_fields__):
        default = getattr(NodeAgentSettings(), name)
        other = msgspec.structs.replace(NodeAgentSettings(), **{name: default + type(default)(1)})
        assert getattr(other.config(), name) == default + 1, name


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"keep_warm_s": "-1"}, "keep_warm_s is at least 0"),
        ({"quota_library": "quota.so"}, "quota_library is 'quota.so'; it must be an absolute path, or off"),
        ({"watch_mps_s": "0"}, "watch_mps_s"),
        *(({"usage_every_s": seconds}, "usage_every_s") for seconds in ("-1", "0.1", "601")),
        ({"nodes": "n1,../n2"}, "'../n2' is no node's name"),
        ({"nodes": "N1"}, "'N1' is no node's name"),
        ({"closing_ttl_s": "0"}, "closing_ttl_s"),
        ({"tombstone_ttl_s": "1"}, "must be longer than closing_ttl_s"),
        ({"back_off_first_s": "100"}, "at most back_off_max_s"),
        ({"quarantine_after": "0"}, "quarantine_after"),
        ({"role": "csi"}, "kubelet_root must be set where role is csi"),
        ({"nodes": "n1", "kubelet_root": "kubelet"}, "kubelet_root is 'kubelet'; it must be an absolute path"),
        ({"nodes": "n1", "kubelet_root": "/"}, "kubelet_root is '/'"),
        ({"nodes": "n1", "kubelet_root": "/k", "pods_dir": "/run/../pods"}, "pods_dir is '/run/../pods'"),
        ({"nodes": "n1,n2", "kubelet_root": "/k"}, "nodes names 2 nodes; with kubelet_root it must name one"),
        ({"fixed_layout": "n1,GPU-1"}, "fixed_layout: 'GPU-1' is no GPU: say all, a node's name, <node>:<index>, or"),
        ({"fixed_layout": "all", "fleet_file": "fleet.toml"}, "of simulated ones the fleet file says it"),
        ({"role": "driver"}, "SLUICE_NODE_AGENT_ROLE is 'driver'"),
        ({"mps_controll": "off"}, "did you mean SLUICE_NODE_AGENT_MPS_CONTROL"),
    ],
)
def test_a_wrong_setting_is_named(variables, sentence):
    """A person who sets up a node reads which setting is wrong, and what would be right."""
    with pytest.raises(SettingsError, match=sentence):
        _load(**variables)


@pytest.mark.parametrize("nodes", ["", "n1,n2"])
def test_a_real_node_is_named_alone(nodes):
    """An agent that would serve this machine's GPUs under no name, or under two, does not start."""
    with pytest.raises(NodeBackendError, match="SLUICE_NODE_AGENT_NODES must name this node, and no other"):
        backends_of(_load(nodes=nodes))


def test_an_mps_program_that_is_not_there_is_named():
    """A node would silently share nothing, although MPS was asked for."""
    with pytest.raises(NodeBackendError, match=r"mps_control is '/none/mps', which is no program"):
        find_program("/none/mps", "mps_control")


def test_the_container_toolkit_is_asked_for_its_version(tmp_path):
    """The inventory shows which nodes run a toolkit with known holes. One that says nothing of use stops no agent."""
    program = tmp_path / "nvidia-ctk"
    program.touch(0o755)
    for said, version in (
        ("#!/bin/sh\necho 'NVIDIA Container Toolkit CLI version 1.17.4'\necho 'commit: 9b69590c'\n", "1.17.4"),
        ("#!/bin/sh\necho 'NVIDIA Container Toolkit CLI version 1.18.0-rc.1'\n", "1.18.0-rc.1"),
        ("#!/bin/sh\necho what; exit 3\n", ""),
        ("no program", ""),
    ):
        program.write_text(said)
        assert toolkit_version(str(program)) == version
    assert toolkit_version(str(tmp_path / "none")) == ""


IMPORTS = """
import sys
from pathlib import Path
from sluice_node_agent.settings import NodeAgentSettings
from sluice_node_agent.shell import app
(Path(sys.argv[1]) / "fleet.toml").write_text('[[node]]\\nname = "n1"\\ngpus = [{ model = "a100-40gb" }]\\n')
fleet = {"fleet_file": Path(sys.argv[1]) / "fleet.toml"} if sys.argv[2] == "simulated" else {"nodes": ("n1",)}
app.backends_of(NodeAgentSettings(data_dir=Path(sys.argv[1]), **fleet))
print("\\n".join(sys.modules))
"""


def _imported(tmp_path, kind):
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS, str(tmp_path), kind], capture_output=True, text=True, check=True, timeout=30
    )
    return set(done.stdout.split())


def test_an_agent_holds_only_what_its_kind_of_node_needs(tmp_path):
    """An agent on a real node carries no simulator, a simulated one no driver's library: both stay small."""
    simulated, real = _imported(tmp_path, "simulated"), _imported(tmp_path, "real")
    assert "sluice_node_agent.simulated.backend" in simulated
    assert "pynvml" not in simulated
    assert "sluice_node_agent.device.nvml.backend" in real
    assert not {name for name in real if "simulated" in name or "stand_in" in name or "hardware_file" in name}
    for modules in (simulated, real):
        assert not {name for name in modules if name.startswith(("opentelemetry.sdk", "argparse"))}


def test_time_is_enforced_where_the_image_can(tmp_path, monkeypatch):
    """A setting that needs an operator is on nowhere, or a setting that is off is on."""
    monkeypatch.setattr(external_programs, "QUOTA_IN_IMAGE", tmp_path / "image.so")
    assert quota_library("") is None
    (tmp_path / "image.so").touch()
    assert quota_library("") == tmp_path / "image.so"
    assert quota_library("off") is None
    (tmp_path / "mine.so").touch()
    assert quota_library(str(tmp_path / "mine.so")) == tmp_path / "mine.so"
    with pytest.raises(NodeBackendError, match="which is no file; build it"):
        quota_library(str(tmp_path / "none.so"))


@pytest.mark.parametrize("call", ["names", "read"])
def test_tickets_that_cannot_be_read_are_told_in_a_sentence(call):
    """An operator would find a traceback where the agent says what it cannot read."""
    refuse = Mock(side_effect=PermissionError(errno.EACCES, "Permission denied", "/run/sluice/pods"))
    tickets = SimpleNamespace(**{"names": tuple, "read": tuple, call: refuse})
    site = SimpleNamespace(backend=SimpleNamespace(read=tuple, nameless=dict), mps=SimpleNamespace(found=tuple))
    marks = SimpleNamespace(found=lambda _gpus, all_told: ((), ()), unmarked=tuple)
    journal = SimpleNamespace(problem="it is torn", is_new=False, records=tuple)
    with pytest.raises(NodeBackendError, match=r"the tickets of this node cannot be .*/run/sluice/pods"):
        read_node(site, journal, tickets, marks, AgentAddress("host:1"))


@pytest.fixture
def few():
    """A process that may have few files open, and could have more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard == resource.RLIM_INFINITY or hard > 512
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    yield FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, FILES_MAX)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_agent_may_open_as_many_files_as_it_is_allowed_to(few):
    """With the 1024 of a container, some hundred shares of a node leave the agent blind."""
    with capture_logs() as said:
        raise_file_limit()
        raise_file_limit()
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == few
    told = [(line["event"], line["limit"], line.get("before")) for line in said]
    assert told == [("open files", few, 512), ("open files", few, None)]


def test_a_limit_that_cannot_be_raised_ends_nothing(few, monkeypatch):
    """A sandbox that forbids it would keep the agent from starting."""
    refuse = Mock(side_effect=OSError(errno.EPERM, "Operation not permitted"))
    with monkeypatch.context() as forbidden, capture_logs() as said:
        forbidden.setattr(app.resource, "setrlimit", refuse)
        raise_file_limit()
    assert [(line["log_level"], line["limit"], line["wanted"]) for line in said] == [("warning", 512, few)]


def test_a_service_begins_with_it(monkeypatch):
    """An agent that was started as a service would keep the limit of its container."""
    monkeypatch.setattr(app, "raise_file_limit", Mock(side_effect=RuntimeError("the limit is raised")))
    with pytest.raises(RuntimeError, match="the limit is raised"):
        asyncio.run(app.serve(SimpleNamespace()))
