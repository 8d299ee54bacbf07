"""What is known of one node and what is under way on it: devices, tasks, instructions in flight."""
