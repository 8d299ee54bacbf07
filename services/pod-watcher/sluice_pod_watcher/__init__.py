"""The pod-watcher: the source of requests. Reads manifests or a Kubernetes cluster, and publishes what pods ask for."""
