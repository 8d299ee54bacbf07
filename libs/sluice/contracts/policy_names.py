"""Names of node and GPU policies, and how they combine."""

from sluice.contracts.reasons import nearest, shorten

BOTH_LEVELS = ("first-fit", "compact-first", "low-load-first", "node-compact-gpu-low-load")
"""Set for nodes or for GPUs alone, these apply to both."""
NODE_POLICIES = ("fragmentation", "binpack", "spread", *BOTH_LEVELS)
GPU_POLICIES = (*NODE_POLICIES, "topology-aware", "mutex", "numa")
CHAINABLE = ("binpack", "spread", "numa", "mutex", "topology-aware")
"""GPU policies that may be chained: `numa,binpack`, `mutex,spread`. Each at most once."""


def links_of(gpu_policy: str) -> tuple[str, ...]:
    """The policies of a chain, in order; () for an empty one."""
    return tuple(part.strip() for part in gpu_policy.split(",")) if gpu_policy else ()


def invalid_node_policy_reason(node_policy: str) -> str | None:
    """Why this is not a node policy; None when it is one. Empty is valid: the pool's own."""
    if not node_policy or node_policy in NODE_POLICIES:
        return None
    if node_policy in GPU_POLICIES:
        return f"{node_policy} chooses among GPUs, not among nodes; known for nodes: {', '.join(NODE_POLICIES)}"
    return _unknown(node_policy, NODE_POLICIES)


def invalid_gpu_policy_reason(gpu_policy: str) -> str | None:
    """Why this is not a GPU policy or a chain of them; None when it is. Empty is valid: the pool's own."""
    links = links_of(gpu_policy)
    for link in links:
        if link not in GPU_POLICIES:
            return _unknown(link, GPU_POLICIES)
    if len(links) == 1:
        return None
    alone = next((link for link in links if link not in CHAINABLE), None)
    if alone is not None:
        return f"{alone} cannot be chained; a chain is made of {', '.join(CHAINABLE)}"
    twice = next((link for link in links if links.count(link) > 1), None)
    if twice is not None:
        return f"{twice} is listed twice"
    if "binpack" in links and "spread" in links:
        return "binpack and spread are opposites; one of them"
    return None


def _unknown(name: str, known: tuple[str, ...]) -> str:
    near = nearest(name[:63], known)
    guess = f" (did you mean {near}?)" if near else ""
    return f"there is no policy {shorten(name, 63)!r}{guess}; known: {', '.join(known)}"
