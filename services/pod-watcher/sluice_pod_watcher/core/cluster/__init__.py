"""
A Kubernetes cluster as a source of requests: pods and nodes in, patches, evictions, events and words on the bus out.

Pure. Everything is keyed by the pod's UID, never by its name.
"""
