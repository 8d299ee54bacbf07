"""A Kubernetes cluster as a source of requests: pods and nodes in; patches, evictions, Events and bus messages out.
Pure. Everything is keyed by the pod's UID, never by its name."""
