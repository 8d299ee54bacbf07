"""Nodes: adopted before use, and taken out of use."""
