"""Simulated GPUs and a simulated MPS: for laptops and tests, never for a real node."""
