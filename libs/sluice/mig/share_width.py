"""Compute how wide a share of SMs is on its device: one rule to book it and to enforce it. Pure arithmetic."""

FULL_WIDTH_PERCENT = 100


def width_percent(sm_partition: int, sms: int, gpu_sms: int) -> int:
    """The percentage of a device's SMs that a share takes: `sm_partition` itself on a device with all SMs of its GPU.

    `sms` are the device's, `gpu_sms` the GPU's, to which `sm_partition` refers. On a MIG instance the share is rounded
    up to whole SMs, and those to whole percents of the instance; more than 100 when the instance is too small. A share
    without a bound (0) may use every SM, and counts as all."""
    if not sm_partition:
        return FULL_WIDTH_PERCENT
    if sms >= gpu_sms:
        return sm_partition
    wanted = -(-sm_partition * gpu_sms // 100)
    return -(-100 * wanted // max(1, sms))
