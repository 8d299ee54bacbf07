"""What the tests of quotas start from."""

import pytest
from factories.scheduling.allocator import Bench, gpu_report
from factories.scheduling.resize import with_gpus


@pytest.fixture
def bench(empty: Bench) -> Bench:
    """An allocator with node-a open: one empty A100-40GB, which may be shared."""
    return with_gpus(empty, gpu_report("node-a", 0))
