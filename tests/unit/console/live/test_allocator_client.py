"""The console's calls to the allocator: what this machine lacks is not the allocator's fault."""

from types import SimpleNamespace

import pytest

from sluice.contracts.messages import LeaseHeld
from sluice_console.core.doctor.bus import ServiceAnswer
from sluice_console.shell.doctor.doctor import _ask_allocator
from sluice_console.shell.live.allocator_client import NoCertificateError, allocator


class LeaseOnly:
    """A bus with one lease: of an allocator at a pod's address."""

    async def last(self, *_: object) -> SimpleNamespace:
        return SimpleNamespace(message=LeaseHeld(role="allocator", owner="r1", endpoint="10.0.0.7:9412"))


@pytest.fixture(autouse=True)
def no_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    """The workstation of an operator who has only port-forwarded the bus."""
    for name in ("CERTIFICATE_FILE", "KEY_FILE", "CA_FILE", "PLAIN_TEXT"):
        monkeypatch.delenv(f"SLUICE_GRPC_{name}", raising=False)


async def test_a_machine_without_certificate_is_told_apart_from_an_allocator_that_fails() -> None:
    """`gRPC would be plain text` was reported of every healthy cluster."""
    with pytest.raises(NoCertificateError, match=r"10\.0\.0\.7:9412"):
        async with allocator(LeaseOnly()):
            raise AssertionError("a call in plain text")
    answer = await _ask_allocator(LeaseOnly())
    assert answer == ServiceAnswer(unasked="there is no certificate here (SLUICE_GRPC_CERTIFICATE_FILE)")
