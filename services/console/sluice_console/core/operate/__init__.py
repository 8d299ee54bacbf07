"""What operators change: cordons, quotas, sizes of shares, removed nodes."""
