"""Jobs, one per module. Each may be killed at any moment and run again (A1, R1, P4)."""
