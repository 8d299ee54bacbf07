"""An inventory that has read an empty bus."""

import pytest
from factories.inventory import RULES, RUN, Bench

from sluice_inventory.core.inventory import Inventory


@pytest.fixture
def bench() -> Bench:
    made = Bench(Inventory(RUN, RULES))
    assert made.start_reading() == []
    assert made.caught_up() == []
    return made
