"""The lake: messages and histories as Parquet for good, and a manifest of what is there (A1)."""
