"""How much disk the broker's streams may take.

HISTORY is for people and loses its oldest messages; STATE, which agents write, refuses new ones. BOOK has no limit:
what the two leave of the store is its room, so no agent can stop the ledger."""

MIB = 1024**2

HISTORY_BYTES_MAX = 4 * 1024 * MIB
"""Disk that HISTORY takes where there is enough, before its oldest messages go."""
HISTORY_MIB_MIN = 16
"""The smallest HISTORY: some thousand messages."""
STATE_MIB_MIN = 8
"""The smallest STATE: a thousand slices and nodes."""
STORE_BYTES_MAX = 2 * HISTORY_BYTES_MAX
"""`max_file_store` of our brokers. The server's default is 75 % of what is free at its start, which may shrink."""
VOLUME_BYTES = 10 * 1024 * MIB
"""The volume in the manifests: the store plus the file system's overhead."""
HISTORY_OF_DISK = 4
"""HISTORY gets this fraction (1/n) of a small disk; BOOK, STATE, journals and logs get the rest."""
ROOM_MIB = 64
"""Free disk needed to start a system, or to restart a broker whose disk was full."""


def state_bytes(history: int) -> int:
    """The size limit of STATE beside a HISTORY of so many bytes: half of that, so BOOK has a quarter of the store."""
    return max(STATE_MIB_MIN * MIB, history // 2)


def history_bytes(disk_bytes: int) -> int:
    """The size limit of HISTORY for a disk with `disk_bytes` for the broker: free space plus what it stores."""
    share = disk_bytes // HISTORY_OF_DISK // MIB * MIB
    return min(HISTORY_BYTES_MAX, max(HISTORY_MIB_MIN * MIB, share))
