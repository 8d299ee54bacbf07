"""What the tests of quotas start from."""

import pytest
from factories.scheduling.allocator import Bench
from factories.scheduling.quotas import with_a_gpu_to_share


@pytest.fixture
def bench(empty: Bench) -> Bench:
    """An allocator with node-a open: one empty A100-40GB, which may be shared."""
    return with_a_gpu_to_share(empty)
