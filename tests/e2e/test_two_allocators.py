"""Two allocators that both work all the time: the lease may lie, the guards may not."""

import pytest
from factories.system import fleet_text, standing, up, violations, wait_for

REQUESTS = 500
SETTLE_S = 150.0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_allocators_bind_no_request_twice_and_give_no_place_twice(tmp_path):
    """500 requests on a fleet for 448 small ones, among them some that fit on exactly two nodes."""
    environment = {"SLUICE_ALLOCATOR_ALWAYS_ACTIVE": "true"}
    fleet = fleet_text(8, 8) + fleet_text(2, 1, prefix="pair").replace("A100-SXM4-40GB", "NVIDIA A30")
    with up(tmp_path, fleet, "--allocators", "2", environment=environment) as running:
        assert len(running.children("sluice_allocator")) == 2
        for number in range(REQUESTS - 40):
            running.write(f"pod-{number:03}")
        for number in range(40):
            running.write(f"pair-{number:02}", profile="4g.24gb")  # one such fits on each of the two A30 nodes
        wait_for(lambda: len(standing(running).bound) == 448 + 2, SETTLE_S, running)
        wait_for(lambda: len(standing(running).booked) == 448 + 2, SETTLE_S, running)

        assert violations(running) == []
        for manifest in list(running.pods.glob("*.yaml")):
            manifest.unlink()
        wait_for(lambda: standing(running).booked == [], SETTLE_S, running)
        assert violations(running) == []
