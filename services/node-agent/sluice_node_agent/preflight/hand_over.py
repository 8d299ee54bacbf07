"""
Preflight of handing devices over by ResourceClaim: the directory of CDI files, and NVIDIA's container toolkit.

See `findings` for what a check may do.
"""

import os

from sluice_node_agent.preflight.findings import Check, Finding, Machine


def check_hand_over(machine: Machine) -> list[Finding]:
    """Whether the kubelet could hand devices over. Without that, pods get them by ticket."""
    if not machine.hand_over:
        return [Finding(Check.HAND_OVER, "ok", "no kubelet hands devices over by ResourceClaim here: it is off")]
    found = []
    there = next(place for place in (machine.cdi_dir, *machine.cdi_dir.parents) if place.exists())
    if not os.access(there, os.W_OK | os.X_OK, effective_ids=True):
        found.append(
            Finding(
                Check.HAND_OVER,
                "warning",
                f"{there} cannot be written by user {machine.uid}, so the kubelet cannot hand devices over by "
                f"ResourceClaim (CDI files are kept in {machine.cdi_dir})",
                f"run the agent as root; in a container, mount the host's {machine.cdi_dir} at the same path",
            )
        )
    why = "" if machine.simulated else machine.why_no_cdi()
    if why:
        found.append(
            Finding(
                Check.HAND_OVER,
                "warning",
                f"the kubelet cannot hand devices over by ResourceClaim: {why}",
                "mend it, or set SLUICE_NODE_AGENT_HAND_OVER=false: pods then get their devices by ticket",
            )
        )
    return found or [Finding(Check.HAND_OVER, "ok", "the kubelet can hand devices over by ResourceClaim (CDI)")]
