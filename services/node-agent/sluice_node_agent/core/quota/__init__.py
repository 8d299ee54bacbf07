"""The time quota: who may use the SMs of a home, and when. Pure; microseconds of the caller's monotonic clock."""
