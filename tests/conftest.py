"""What every test leaves as it found it."""

import logging

import pytest
import structlog


@pytest.fixture(autouse=True)
def logging_as_it_was():
    """Commands and services set up the logging of their process, and a test may run one in its own."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    structlog.reset_defaults()
    root.handlers = handlers
    root.setLevel(level)
