"""The lake: a permanent copy of messages and histories as Parquet, with a manifest (A1)."""
