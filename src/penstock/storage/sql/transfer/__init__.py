"""Copies of stores in databases: every row as it is, or as ``storage.dump``."""
