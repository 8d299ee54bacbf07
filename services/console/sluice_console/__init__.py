"""The `sluice` command. Reads the bus; decides nothing."""
