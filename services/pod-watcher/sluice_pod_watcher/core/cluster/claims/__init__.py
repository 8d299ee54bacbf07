"""ResourceClaims of our pods: what the API server has, what they shall be, and whether kubelets can use them."""
