"""Handing devices over by ResourceClaim, as the kubelet asks for it."""
