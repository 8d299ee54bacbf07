"""`sluice simulate -f`: a manifest as a question to the allocator, and the answer in documents and lines."""
