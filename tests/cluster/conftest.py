"""
One real cluster for all tests of a run: started when the first asks for it, removed with everything at the end.

Tests that ask for it have the marker `cluster`: `make test-cluster` runs them, `make test` does not.
"""

import os
from collections.abc import Iterator

import pytest
from cluster.harness import cluster as clusters
from cluster.harness.binaries import NEWEST
from cluster.harness.cluster import Cluster

MINOR = os.environ.get("SLUICE_CLUSTER_KUBERNETES", NEWEST)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Before tests are selected by their markers."""
    for item in items:
        if isinstance(item, pytest.Function) and "cluster" in item.fixturenames:
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A control plane and two workers; what is missing was built by `python tests/cluster build`."""
    if why := clusters.why_impossible():
        pytest.skip(why)
    with clusters.running("test", minor=MINOR) as running:
        yield running
