"""What `sluice doctor` makes of what it is shown: findings in words. Pure; it must not ask anybody anything."""
