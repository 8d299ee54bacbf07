"""What a node is made of: real or simulated GPUs, and the programs that serve them."""
