"""An agent that starts where the machine is in its way: a sentence, no traceback; and all the files it may have."""

import asyncio
import errno
import resource
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from sluice.contracts.messages import AgentAddress
from sluice_node_agent.shell import app
from sluice_node_agent.shell import app as file_limit
from sluice_node_agent.shell.app import FILES_MAX, raise_file_limit
from sluice_node_agent.shell.nodes.node_backend import NodeBackendError
from sluice_node_agent.shell.runner.agent_runner import read_node


@pytest.mark.parametrize("call", ["names", "read"])
def test_tickets_that_cannot_be_read_are_told_in_a_sentence(call):
    """An operator would find a traceback where the agent says what it cannot read."""

    def refuse():
        raise PermissionError(errno.EACCES, "Permission denied", "/run/sluice/pods")

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
    assert [(line["event"], line["limit"], line.get("before")) for line in said] == [
        ("open files", few, 512),
        ("open files", few, None),
    ]


def test_a_limit_that_cannot_be_raised_ends_nothing(few, monkeypatch):
    """A sandbox that forbids it would keep the agent from starting."""

    def refuse(*_):
        raise OSError(errno.EPERM, "Operation not permitted")

    with monkeypatch.context() as forbidden, capture_logs() as said:
        forbidden.setattr(file_limit.resource, "setrlimit", refuse)
        raise_file_limit()
    assert [(line["log_level"], line["limit"], line["wanted"]) for line in said] == [("warning", 512, few)]


def test_a_service_begins_with_it(monkeypatch):
    class RaisedError(Exception):
        pass

    def raised():
        raise RaisedError

    monkeypatch.setattr(app, "raise_file_limit", raised)
    with pytest.raises(RaisedError):
        asyncio.run(app.serve(SimpleNamespace()))
