"""Consuming: claim for ever, keep the leases alive, settle by context manager."""
