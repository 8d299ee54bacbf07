"""A Kubernetes cluster as a source of requests. Pure; everything is keyed by the pod's UID, never by name."""
