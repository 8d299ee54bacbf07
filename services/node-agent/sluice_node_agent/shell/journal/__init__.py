"""What survives a crash: the journal, and the ownership marks of instances."""
