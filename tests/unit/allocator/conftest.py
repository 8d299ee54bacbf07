"""What every allocator test starts from."""

import pytest
from factories.scheduling.allocator import Bench, working_allocator


@pytest.fixture
def empty() -> Bench:
    """An allocator that works and has read an empty bus."""
    return working_allocator()


@pytest.fixture
def bench(empty: Bench) -> Bench:
    empty.add_nodes("node-a")
    empty.said.clear()
    return empty
