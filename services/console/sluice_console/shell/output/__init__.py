"""Output: tables and colours, JSON and YAML, the terminal as a screen."""
