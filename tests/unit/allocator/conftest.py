"""What every allocator test starts from."""

import pytest
from factories.scheduling.allocator import Bench, gpu_report, snapshot, working_allocator


@pytest.fixture
def empty() -> Bench:
    """An allocator that works and has read an empty bus."""
    return working_allocator()


@pytest.fixture
def bench(empty: Bench) -> Bench:
    empty.add_node(snapshot("node-a", (gpu_report("node-a", 0),)))
    empty.said.clear()
    return empty
