"""What `sluice bench` asks for, and what its figures mean. Starts nothing and measures nothing itself."""
