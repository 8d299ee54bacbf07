"""What is known of one node, and what is in flight there: devices, tasks, instructions."""
