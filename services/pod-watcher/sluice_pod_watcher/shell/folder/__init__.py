"""The folder source: reads manifests, keeps identities on disk."""
