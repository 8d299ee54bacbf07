"""What a pod asks of GPUs, and what the operator allows: plain values, and what they mean on one kind of GPU."""
