"""Two allocators that both work all the time: the lease may lie, the guards may not."""

import os

import pytest
from factories.system import fleet_text, standing, up, violations, wait_for

REQUESTS = int(os.environ.get("REQUESTS_IN_TESTS", "160"))
"""A dose for `make test`; 500 in `make doses`."""
OF_PAIRS = 40
NODES, GPUS = (REQUESTS - OF_PAIRS) // 57, 8
PLACES = NODES * GPUS * 7
"""A few less than small ones are asked for."""
SETTLE_S = 150.0


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_two_allocators_bind_no_request_twice_and_give_no_place_twice(tmp_path):
    """More requests than have a place, among them some that fit on exactly two nodes."""
    environment = {"SLUICE_ALLOCATOR_ALWAYS_ACTIVE": "true"}
    fleet = fleet_text(NODES, GPUS) + fleet_text(2, 1, prefix="pair").replace("A100-SXM4-40GB", "NVIDIA A30")
    with up(tmp_path, fleet, "--allocators", "2", environment=environment) as running:
        assert len(running.children("sluice_allocator")) == 2
        for number in range(REQUESTS - OF_PAIRS):
            running.write(f"pod-{number:03}")
        for number in range(OF_PAIRS):
            running.write(f"pair-{number:02}", profile="4g.24gb")  # one such fits on each of the two A30 nodes
        wait_for(lambda: len(standing(running).bound) == PLACES + 2, SETTLE_S, running)
        wait_for(lambda: len(standing(running).booked) == PLACES + 2, SETTLE_S, running)
        assert violations(running) == []
        for manifest in list(running.pods.glob("*.yaml")):
            manifest.unlink()
        wait_for(lambda: standing(running).booked == [], SETTLE_S, running)
        assert violations(running) == []
