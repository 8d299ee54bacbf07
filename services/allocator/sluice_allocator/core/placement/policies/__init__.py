"""
How to choose where several places would do: one small module per policy, and which of them a search follows.

Nobody outside this package looks behind this face.
"""

from sluice_allocator.core.placement.policies.chains import check_names, policy_for
from sluice_allocator.core.placement.policies.policy import DeviceUse, NodeOrder, Policy

__all__ = ["DeviceUse", "NodeOrder", "Policy", "check_names", "policy_for"]
