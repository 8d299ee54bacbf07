"""How much of a disk the streams may take: bookings always find room."""

import pytest

from sluice.contracts.bus.store_sizes import (
    HISTORY_BYTES_MAX,
    HISTORY_MIB_MIN,
    MIB,
    ROOM_MIB,
    STORE_BYTES_MAX,
    VOLUME_BYTES,
    history_bytes,
)


@pytest.mark.parametrize(
    ("disk_mib", "history_mib"),
    [
        (0, 16),
        (64, 16),
        (100, 25),
        (500, 125),
        (501, 125),
        (5_300, 1_325),
        (16 * 1024, 4 * 1024),
        (1_000_000, 4 * 1024),
    ],
)
def test_history_takes_a_quarter_of_a_small_disk_and_4_gib_of_a_large_one(disk_mib, history_mib):
    """BOOK, STATE, the agents' journals and the logs are on the same disk."""
    assert history_bytes(disk_mib * MIB) == history_mib * MIB


def test_the_smallest_disk_that_is_taken_has_room_beside_the_smallest_history():
    """A system that starts also works: a demo's BOOK, STATE, journals and logs are under 2 MiB."""
    assert HISTORY_MIB_MIN * 4 <= ROOM_MIB
    assert history_bytes(ROOM_MIB * MIB) + 2 * MIB < ROOM_MIB * MIB
    assert 2 * HISTORY_BYTES_MAX <= STORE_BYTES_MAX < VOLUME_BYTES
