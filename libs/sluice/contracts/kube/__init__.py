"""Terms of Kubernetes that several services use: names on objects, quantities, selectors, taints."""
