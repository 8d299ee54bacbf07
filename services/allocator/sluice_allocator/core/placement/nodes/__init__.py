"""What one node and its GPUs have, and what is booked on them."""
