"""How an agent continues after a restart, a reboot, or the loss of its journal."""
