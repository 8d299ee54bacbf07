"""ResourceClaims: how they ask for slices, and how the kubelet hands slices over by them."""
