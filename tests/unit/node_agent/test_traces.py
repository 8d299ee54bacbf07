"""Whose step it is: a trace that shows another pod's device steps sends people to the wrong place."""

import pytest

from sluice_node_agent.core import instructions as do


@pytest.fixture
def steps(node):
    """Each instruction of the agent's own with the request that it was a step of when it went out, by kind."""
    found: dict[type, list[str]] = {}
    node.live()
    handle = node.agent.handle

    def noting(event, now):
        out = handle(event, now)
        for each in out:
            if hasattr(each, "token"):
                found.setdefault(type(each), []).append(node.agent.request_of(each.token))
        return out

    node.agent.handle = noting
    return found


def test_steps_of_two_slices_of_one_gpu_are_told_apart(node, steps):
    """They take turns on the GPU, so what was done last says nothing about whose step is next."""
    first, second = node.booking("a1", (0, "3g.20gb", 0, 4)), node.booking("a2", (0, "1g.5gb", 4, 1))
    node.order(node.grant(first))
    node.order(node.grant(second))
    node.work()
    for kind in (do.CreateGpuInstance, do.CreateComputeInstance, do.VerifyInstance, do.MakeTicket):
        assert sorted(steps[kind]) == ["req-a1", "req-a2"]
    node.order(node.revoke(first))
    node.work()
    assert (steps[do.RemoveTicket], steps[do.DestroyGpuInstance]) == (["req-a1"], ["req-a1"])


def test_a_daemon_is_a_step_of_the_share_that_it_is_started_for(node, steps):
    node.order(node.grant(node.share("a1", (0, "3g.20gb", 0, 4))))
    node.work()
    assert steps[do.StartMps] == ["req-a1"]
    assert steps[do.CreateGpuInstance] == ["req-a1"]


def test_what_an_agent_does_by_itself_is_nobodys(node, steps):
    """A reading of a GPU by a timer is in no trace; and no token that is not out belongs to anybody."""
    for _ in range(100):
        node.tick(10.0)
    assert set(steps[do.ReadGpu]) == {""}
    assert node.agent.request_of(10_000_000) == ""
