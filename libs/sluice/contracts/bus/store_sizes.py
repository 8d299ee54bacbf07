"""
Compute how much of its disk the broker's streams may take; the only place that does.

Pure numbers for `sluice up`, which knows its disk, for the manifests, which set a volume, and for the code that
declares the streams. Only HISTORY has a size: it is for people, and may lose its oldest messages. BOOK and STATE hold
one message per subject, and a size limit would drop bookings there.
"""

MIB = 1024**2

HISTORY_BYTES_MAX = 4 * 1024 * MIB
"""Disk that HISTORY takes where there is enough, before its oldest words go."""
HISTORY_MIB_MIN = 16
"""As little as it can be given: some thousand words."""
STORE_BYTES_MAX = 2 * HISTORY_BYTES_MAX
"""
`max_file_store` of our brokers. Said and not left to the server, which takes 75 % of what is free when it starts: then
a disk that others have filled meanwhile would have no room for the streams that are on it.
"""
VOLUME_BYTES = 10 * 1024 * MIB
"""The volume in the manifests: the store, and the file system's own."""
HISTORY_OF_DISK = 4
"""HISTORY gets one part in so many of a small disk: BOOK, STATE, journals and logs have the others."""
ROOM_MIB = 64
"""So much must be free for a system to start, and for a broker whose disk was full to be started again."""


def history_bytes(disk_bytes: int) -> int:
    """What HISTORY may take of a disk of which the broker can have `disk_bytes`: what is free, and what it stores."""
    share = disk_bytes // HISTORY_OF_DISK // MIB * MIB
    return min(HISTORY_BYTES_MAX, max(HISTORY_MIB_MIN * MIB, share))
