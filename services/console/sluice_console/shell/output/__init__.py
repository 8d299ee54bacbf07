"""How results are printed: tables and colours, JSON and YAML, a terminal as a screen."""
