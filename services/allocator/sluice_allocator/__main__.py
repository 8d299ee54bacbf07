"""Puts the allocator together and runs it. `python -m sluice_allocator`, or `sluice-allocator`."""

from sluice.runtime import sigint  # noqa: F401 - the first import, so that Ctrl-C ends the others quietly

# isort: split
import sys

from sluice.runtime.service import run
from sluice.runtime.settings import load
from sluice_allocator.settings import AllocatorSettings
from sluice_allocator.shell.app import serve


def main() -> int:
    """Run until stopped. Returns the exit code."""
    return run(serve, lambda: load(AllocatorSettings, service="allocator"), "allocator", words=sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
