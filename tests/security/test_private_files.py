"""Secrets and files that decide belong to their owner alone: those we write, and those we are given."""

import os
import stat

import pytest
import structlog

from sluice.runtime.settings import CommonSettings, load
from sluice.runtime.tls.certificate_files import warn_if_open
from sluice_node_agent.shell.journal.journal import Journal
from sluice_pod_watcher.shell.folder.identity_file import IdentityFile


def modes(folder):
    return {stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(autouse=True)
def careless():
    before = os.umask(0)
    yield
    os.umask(before)


def test_a_journal_is_its_agents_alone(tmp_path):
    """Write access to it could grant a place twice."""
    Journal(tmp_path / "n1", "n1").close()
    assert stat.S_IMODE((tmp_path / "n1").stat().st_mode) == 0o700
    assert modes(tmp_path / "n1") == {0o600}


def test_identities_are_the_pod_watchers_alone(tmp_path):
    """Write access to it could withdraw other people's pods."""
    with IdentityFile(tmp_path) as file:
        file.save(())
    assert modes(tmp_path) == {0o600}


@pytest.mark.parametrize(("mode", "told"), [(0o600, 0), (0o400, 0), (0o440, 0), (0o444, 1), (0o666, 1), (0o620, 1)])
def test_a_secret_that_others_can_read_is_told(tmp_path, mode, told):
    """As ssh does; a kubelet lets a container's group read."""
    secret = tmp_path / "password"
    secret.write_text("hidden")
    secret.chmod(mode)
    with structlog.testing.capture_logs() as lines:
        warn_if_open("nats_password_file", secret)
    assert [line["event"] for line in lines] == ["a secret is not private"] * told
    assert not any("hidden" in str(line) for line in lines)


def test_a_service_that_reads_its_password_says_so(tmp_path):
    """In its own log, where its operator reads."""
    from sluice.runtime.nats.credential_files import credentials_from_settings  # noqa: PLC0415

    secret = tmp_path / "password"
    secret.write_text("hidden")
    secret.chmod(0o644)
    settings = load(CommonSettings, service="allocator", environ={"SLUICE_NATS_PASSWORD_FILE": str(secret)})
    with structlog.testing.capture_logs() as lines:
        credentials_from_settings(settings).current()
    assert [line["setting"] for line in lines if line["event"] == "a secret is not private"] == ["nats_password_file"]
