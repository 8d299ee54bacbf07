"""Where the page's links to traces lead is set by an operator, who may err."""

import pytest

from sluice.runtime.bus import BusError
from sluice_console.shell.live.connect import settings_of_console


@pytest.mark.parametrize("address", ["jaeger/{trace_id}", "https://jaeger.example/trace", "javascript:{trace_id}"])
def test_an_address_that_is_none_is_refused_with_one_that_would_be(monkeypatch, address):
    monkeypatch.setenv("SLUICE_CONSOLE_TRACE_VIEWER", address)
    with pytest.raises(BusError, match=r"trace_viewer = .*: must be an http or https address with \{trace_id\}"):
        settings_of_console()


def test_an_address_is_taken_as_it_is(monkeypatch):
    monkeypatch.setenv("SLUICE_CONSOLE_TRACE_VIEWER", "https://jaeger.example/trace/{trace_id}")
    assert settings_of_console().trace_viewer == "https://jaeger.example/trace/{trace_id}"
