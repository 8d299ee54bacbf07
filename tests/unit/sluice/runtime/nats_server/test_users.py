"""The broker's configuration of its users, without a broker."""

import re

import pytest

from sluice.contracts.bus.nats_permissions import of_any_agent, permissions_of
from sluice.contracts.bus.streams import Role
from sluice.contracts.ids import NodeName
from sluice.runtime.nats_server.users import CertifiedUser, User, authorization

NODE = NodeName("gpu-1.example")


@pytest.mark.parametrize("password", ["short", 'quo"ted-password', "with space in it", ""])
def test_a_password_that_would_end_the_line_is_refused(password):
    """Else a user could get another one's rights through the password."""
    with pytest.raises(ValueError, match="8 or more letters, digits"):
        authorization([User(permissions_of(Role.CONSOLE), password)])


def test_a_password_is_not_in_what_is_shown_of_a_user():
    """It would be in a log."""
    assert "hidden-password" not in repr(User(permissions_of(Role.CONSOLE), "hidden-password"))


def test_what_agents_may_say_is_offered_to_their_accounts():
    """The server refuses an import without its export: no broker would start."""
    reaching = [each for each in permissions_of(Role.NODE_AGENT, NODE).publish if not each.startswith("hist.")]
    for own, offered in zip(reaching, of_any_agent(), strict=True):
        assert own.replace("agent_gpu-1_example", "*").replace("gpu-1_example", "*") == offered


def test_an_agents_lines_are_few_enough_for_hundreds_of_nodes():
    """In Kubernetes they are all in one Secret of 1 MiB (docs/sizing.md says how many)."""

    def size(nodes: int) -> int:
        names = [NodeName(f"gpu-node-{number:04}.cluster.example") for number in range(nodes)]
        return len("\n".join(authorization([User(permissions_of(Role.NODE_AGENT, name), "x" * 32) for name in names])))

    assert size(101) - size(1) < 100 * 960 * 1024 / 500


def test_who_is_known_by_a_certificate_has_no_secret_there():
    """The list may be public."""
    text = "\n".join(authorization([CertifiedUser(permissions_of(Role.NODE_AGENT, NODE), "gpu-1.example.node")]))
    assert re.findall(r'user: "([^"]+)"', text) == ["gpu-1.example.node"]
    assert "password" not in text
