"""The API server for the cluster's core: lists and watches in; patches, evictions and Events out."""
