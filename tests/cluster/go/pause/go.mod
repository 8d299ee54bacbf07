module sluice.dev/tests/pause

go 1.24
