"""Nodes: real or simulated GPUs, and the programs that serve them."""
