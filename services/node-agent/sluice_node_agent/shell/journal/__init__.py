"""What survives a crash: the journal, and the marks of the places where instances are ours."""
