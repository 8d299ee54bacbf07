"""The time quota: which process may use the SMs of a home, and when. Pure; microseconds of a monotonic clock."""
