"""The API server, as the cluster's core needs it: lists and watches in, patches, evictions and events out."""
