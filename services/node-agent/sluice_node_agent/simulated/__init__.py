"""Simulated GPUs and a simulated MPS, for laptops and tests."""
