"""Settings: the environment over a file, and nothing silently ignored."""

from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest

from sluice.runtime.settings import CommonSettings, SettingsError, load


class AgentSettings(CommonSettings, frozen=True, kw_only=True):
    nodes: tuple[str, ...]
    fleet: Path | None = None
    period_s: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    grace_s: float = 1.0
    workers: int = 4
    strict: bool = False
    policy: Literal["binpack", "spread"] = "binpack"
    bus_password: str = ""
    names: list[str] | None = None

    def __post_init__(self) -> None:
        if self.workers < len(self.nodes):
            raise ValueError("workers must be at least the number of nodes")


NODES = {"SLUICE_NODE_AGENT_NODES": "gpu-1.example.internal"}


def read(environ: dict[str, str] | None = None, config: Path | None = None) -> AgentSettings:
    file = {} if config is None else {"SLUICE_CONFIG": str(config)}
    return load(AgentSettings, service="node-agent", environ=(NODES if environ is None else environ) | file)


def refusal(environ: dict[str, str] | None = None, config: Path | None = None) -> str:
    with pytest.raises(SettingsError) as caught:
        read(environ, config)
    return str(caught.value)


@pytest.fixture
def config(tmp_path: Path):
    def write(text: str) -> Path:
        path = tmp_path / "sluice.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_every_type_can_be_set_from_the_environment():
    """Strings become what the field is, lists by comma."""
    own = {"NODES": "a, b.example.internal,", "FLEET": "/etc/fleet.toml", "PERIOD_S": "0.25", "WORKERS": "8"}
    own |= {"STRICT": "true", "POLICY": "spread", "NAMES": "x,y"}
    environ = {f"SLUICE_NODE_AGENT_{name}": text for name, text in own.items()}
    environ |= {"SLUICE_DATA_DIR": "/srv/sluice", "SLUICE_NATS_URL": "nats://127.0.0.1:5222", "PATH": "/bin"}
    assert read(environ) == AgentSettings(
        nodes=("a", "b.example.internal"),
        fleet=Path("/etc/fleet.toml"),
        period_s=0.25,
        workers=8,
        strict=True,
        policy="spread",
        names=["x", "y"],
        data_dir=Path("/srv/sluice"),
        nats_url="nats://127.0.0.1:5222",
    )


def test_the_environment_wins_over_the_file(config):
    """An operator can override one value without touching the file."""
    path = config('nats_url = "nats://file:1"\nlog_level = "debug"\n[node-agent]\nnodes = ["a"]\nworkers = 3\n')
    settings = read({"SLUICE_NATS_URL": "nats://environ:2", "SLUICE_NODE_AGENT_WORKERS": "5"}, path)
    assert (settings.nats_url, settings.log_level) == ("nats://environ:2", "debug")
    assert (settings.nodes, settings.workers) == (("a",), 5)


def test_a_services_own_spelling_of_a_common_field_holds_for_it_alone():
    """One service can log at debug while the others stay quiet."""
    environ = {**NODES, "SLUICE_LOG_LEVEL": "warning", "SLUICE_NODE_AGENT_LOG_LEVEL": "debug"}
    assert read(environ).log_level == "debug"
    assert read({**NODES, "SLUICE_LOG_LEVEL": "warning", "SLUICE_ALLOCATOR_LOG_LEVEL": "debug"}).log_level == "warning"


def test_one_file_serves_all_services(config):
    path = config('[allocator]\nanything = 1\n[node-agent]\nnodes = ["a"]\n')
    assert read({}, path).nodes == ("a",)


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("SLUICE_NATS_ULR", "SLUICE_NATS_URL"),
        ("SLUICE_NODE_AGENT_NODE", "SLUICE_NODE_AGENT_NODES"),
        ("SLUICE_WORKERS", "SLUICE_NODE_AGENT_WORKERS"),
    ],
)
def test_a_misspelt_variable_is_not_silently_ignored(variable, meant):
    said = f"{variable} is set, but there is no such setting (did you mean {meant}?)"
    assert refusal({**NODES, variable: "1"}) == said


COMMON = "it is common to all services"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('nats_ulr = "x"', "there is no setting nats_ulr (did you mean nats_url?)"),
        ("[node-agent]\nworker = 1", "[node-agent] has no setting worker (did you mean workers?)"),
        ("[node-agnet]\nworkers = 1", "there is no setting node-agnet (did you mean node-agent?)"),
        ("workers = 1", "workers belongs in the table [node-agent]"),
        ('[node-agent]\nnats_url = "x"', f"[node-agent] nats_url belongs to the top of the file: {COMMON}"),
        ('[node-agent]\nworkers = "4"', "[node-agent] workers is '4': Expected int, got str"),
        ('data_dir = ""', "data_dir is '': Expected a path"),
        ("[node-agent]\nbus_password = 12345", "[node-agent] bus_password: Expected str, got int"),
    ],
)
def test_what_the_file_says_wrong_is_not_silently_ignored(config, text, expected):
    """A typo would count for nothing, an empty path be the current folder; and a secret is not repeated."""
    path = config(f"{text}\n")
    assert refusal(config=path) == f"{path}: {expected}"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("WORKERS", "many", "'many': Expected int, got str"),
        ("PERIOD_S", "0", "'0': Expected float > 0.0"),
        ("STRICT", "perhaps", "'perhaps': Expected bool, got str"),
        ("POLICY", "best", "'best': Invalid enum value 'best' (one of binpack, spread)"),
        ("GRACE_S", "nan", "'nan': Expected a number"),
        ("DATA_DIR", "", "'': Expected a path"),
    ],
)
def test_a_wrong_value_names_field_value_and_what_is_expected(name, value, expected):
    variable = f"SLUICE_NODE_AGENT_{name}"
    assert refusal({**NODES, variable: value}) == f"{variable} is {expected}"


def test_a_missing_setting_is_named_as_the_person_would_set_it():
    assert refusal({}) == "SLUICE_NODE_AGENT_NODES is not set, and has no default"


def test_a_rule_over_several_fields_is_told():
    sentence = refusal({"SLUICE_NODE_AGENT_NODES": "a,b", "SLUICE_NODE_AGENT_WORKERS": "1"})
    assert sentence == "settings of node-agent: workers must be at least the number of nodes"


def test_the_addresses_that_kubernetes_injects_are_no_settings():
    """A Service named like one of ours does not stop the pods of its namespace."""
    links = {
        "SLUICE_INVENTORY_SERVICE_HOST": "10.0.0.9",
        "SLUICE_NODE_AGENT_SERVICE_HOST": "10.0.0.8",
        "SLUICE_NODE_AGENT_SERVICE_PORT": "50051",
        "SLUICE_NODE_AGENT_SERVICE_PORT_GRPC": "50051",
        "SLUICE_NODE_AGENT_PORT": "tcp://10.0.0.8:50051",
        "SLUICE_NODE_AGENT_PORT_50051_TCP": "tcp://10.0.0.8:50051",
        "SLUICE_NODE_AGENT_PORT_50051_TCP_ADDR": "10.0.0.8",
    }
    assert read(NODES | links) == read(NODES)


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path, config):
    missing = tmp_path / "none.toml"
    assert refusal(config=missing) == f"the settings file {missing} cannot be read: No such file or directory"
    assert refusal(config=config("nodes = [")).startswith(f"the settings file {tmp_path / 'sluice.toml'} is not TOML: ")


def test_settings_of_no_service_are_a_mistake_of_ours():
    with pytest.raises(SettingsError, match="no service of Sluice"):
        load(CommonSettings, service="node_agent", environ={})
