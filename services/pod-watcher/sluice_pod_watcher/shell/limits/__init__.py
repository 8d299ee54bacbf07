"""The limits file: reads it and publishes what it says."""
