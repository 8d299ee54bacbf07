"""Assembles the inventory and runs it. `python -m sluice_inventory`, or `sluice-inventory`."""

from sluice.runtime import sigint  # noqa: F401 - the first import, so that Ctrl-C ends the others quietly

# isort: split
import sys

from sluice.runtime import service, settings
from sluice_inventory.settings import InventorySettings
from sluice_inventory.shell.app import serve


def main() -> int:
    return service.run(
        serve, lambda: settings.load(InventorySettings, service="inventory"), "inventory", words=sys.argv[1:]
    )


if __name__ == "__main__":
    sys.exit(main())
