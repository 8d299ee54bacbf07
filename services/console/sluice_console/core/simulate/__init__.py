"""`sluice simulate -f`: a manifest as a request to the allocator, and the answer as documents and lines."""
