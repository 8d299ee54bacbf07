"""The kubelet plugin through which a kubelet has the devices of ResourceClaims handed over, and their CDI files."""
