"""
How to choose among several fitting places: one small module per policy, and which of them a search follows.

Other packages import this one only through the names below.
"""

from sluice_allocator.core.placement.policies.chains import check_names, policy_for
from sluice_allocator.core.placement.policies.policy import DeviceUse, NodeOrder, Policy

__all__ = ["DeviceUse", "NodeOrder", "Policy", "check_names", "policy_for"]
