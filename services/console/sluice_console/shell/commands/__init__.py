"""The command line, by group of verbs. Each command imports its modules when it is called."""
