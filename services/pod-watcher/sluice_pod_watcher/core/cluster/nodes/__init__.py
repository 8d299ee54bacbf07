"""What is known of each node: its capacity, the pods that matter there, and its removal."""
