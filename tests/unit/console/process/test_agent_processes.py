"""How many processes serve the agents of simulated nodes by default."""

import os

import pytest

from sluice_console.shell.process.system import agent_processes


@pytest.mark.parametrize(("cores", "expected"), [(1, 1), (2, 2), (8, 8), (64, 8)])
def test_agents_get_as_many_processes_as_there_are_cores_and_no_crowd(monkeypatch, cores, expected):
    """On two cores eight processes take turns: a burst takes longer, and each has memory of its own."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(cores)))

    assert agent_processes() == expected
