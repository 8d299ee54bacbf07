"""Which processes `sluice up` starts."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice_console.core.process_plan import SystemSpec, launches, shared_out
from sluice_console.shell.process import system
from sluice_console.shell.process.system import agent_processes


def wanted(**options):
    base = {
        "nodes": ("a", "b", "c"), "fleet_file": "/f.toml", "pods_dir": "/pods", "data_dir": "/data",
        "nats_url": "nats://h:1", "inventory_address": "h:2", "processes": 8,
    }  # fmt: skip
    return SystemSpec(**(base | options))


@given(st.integers(1, 60), st.integers(1, 12))
def test_every_node_gets_exactly_one_agent_whatever_the_number_of_processes(nodes, processes):
    """Two agents of one node would fight over its devices; none would leave it unused."""
    names = [f"n{number}" for number in range(nodes)]
    groups = shared_out(names, processes)
    assert [name for group in groups for name in group] == names
    assert len(groups) == min(nodes, processes)
    assert max(map(len, groups)) - min(map(len, groups)) <= 1


def test_nodes_share_processes_only_beyond_the_limit():
    agents = [launch for launch in launches(wanted(processes=2)) if launch.service == "node-agent"]
    assert [launch.variables["SLUICE_NODE_AGENT_NODES"] for launch in agents] == ["a,b", "c"]
    assert [launch.name for launch in agents] == ["node-agent a and 1 more", "node-agent c"]


@pytest.mark.parametrize(("count", "names"), [(1, ["allocator"]), (2, ["allocator 1", "allocator 2"])])
def test_as_many_allocators_as_asked_for(count, names):
    assert [launch.name for launch in launches(wanted(allocators=count)) if launch.service == "allocator"] == names


def test_the_closing_time_reaches_every_service_that_says_closing_words():
    """One of them keeping the default would keep its messages for hours."""
    told = {
        launch.service
        for launch in launches(wanted(closing_ttl_s=5))
        if any(name.endswith("CLOSING_TTL_S") and value == "5" for name, value in launch.variables.items())
    }
    assert told == {"allocator", "node-agent", "pod-watcher"}


def test_only_the_pod_watcher_is_told_of_the_limits_file():
    """Without it nothing of the file is said; and another service refuses a setting that it does not know."""
    told = [launch for launch in launches(wanted(limits_file="/l.toml")) if "/l.toml" in launch.variables.values()]
    assert [launch.service for launch in told] == ["pod-watcher"]
    assert told[0].variables["SLUICE_POD_WATCHER_LIMITS_FILE"] == "/l.toml"
    assert not [name for launch in launches(wanted()) for name in launch.variables if "LIMITS" in name]


def test_without_a_fleet_the_agent_serves_the_gpus_of_its_machine():
    told = {launch.service: launch.variables for launch in launches(wanted(nodes=("here",), fleet_file=""))}
    assert told["node-agent"]["SLUICE_NODE_AGENT_NODES"] == "here"
    assert not [name for variables in told.values() for name in variables if name.endswith("FLEET_FILE")]


@pytest.mark.parametrize(
    ("option", "variable"),
    [("mps_dir", "SLUICE_NODE_AGENT_MPS_DIR"), ("quota_library", "SLUICE_NODE_AGENT_QUOTA_LIBRARY")],
    ids=["where MPS daemons keep their sockets", "the library of the time quota"],
)
def test_only_agents_are_told_what_is_theirs(option, variable):
    """Fractional shares would be held to no time; and another service refuses a setting that it does not know."""
    word = option.partition("_")[0].upper()
    told = [
        launch
        for launch in launches(wanted(**{option: "/x"}))
        if "/x" in launch.variables.values() or any(word in name for name in launch.variables)
    ]
    assert {(launch.service, launch.variables[variable]) for launch in told} == {("node-agent", "/x")}


def test_the_library_is_what_was_built_here_by_default(tmp_path, monkeypatch):
    """`off` would be overruled by a file that lies about, or no `sluice up` would ever enforce time."""
    monkeypatch.delenv(system.QUOTA_LIBRARY_VARIABLE, raising=False)
    monkeypatch.setattr(system, "QUOTA_BUILT", tmp_path / "built.so")
    assert system.quota_library() == ""
    (tmp_path / "built.so").touch()
    assert system.quota_library() == str(tmp_path / "built.so")
    monkeypatch.setenv(system.QUOTA_LIBRARY_VARIABLE, "off")
    assert system.quota_library() == ""


def test_a_pod_may_ask_for_all_gpus_of_the_largest_node():
    """Ten GPUs would be refused under `sluice up` on a node of sixteen, and granted by `sluice simulate`."""
    of_sixteen = {launch.service: launch.variables for launch in launches(wanted(largest_node_gpus=16))}
    assert of_sixteen["allocator"]["SLUICE_ALLOCATOR_MAX_GPUS_PER_NODE"] == "16"
    assert of_sixteen["pod-watcher"]["SLUICE_POD_WATCHER_MAX_GPUS_PER_NODE"] == "16"
    of_four = [name for launch in launches(wanted(largest_node_gpus=4)) for name in launch.variables]
    assert not any("MAX_GPUS" in name for name in of_four)  # what a person has set in the environment counts


@pytest.mark.parametrize(("cores", "expected"), [(1, 1), (2, 2), (8, 8), (64, 8)])
def test_agents_get_as_many_processes_as_there_are_cores_and_no_crowd(monkeypatch, cores, expected):
    """On two cores eight processes take turns: a burst takes longer, and each has memory of its own."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(cores)))
    assert agent_processes() == expected
