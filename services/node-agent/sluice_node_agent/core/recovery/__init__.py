"""How an agent goes on after a restart, a reboot, or the loss of its journal."""
