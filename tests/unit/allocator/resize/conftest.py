"""What the tests of resized shares start from."""

import pytest
from factories.scheduling.allocator import Bench, gpu_report
from factories.scheduling.resize import with_gpus


@pytest.fixture
def bench(empty: Bench) -> Bench:
    """An allocator with node-a open: one A100-40GB without MIG, which may be shared."""
    return with_gpus(empty, gpu_report("node-a", 0, mig=False))
