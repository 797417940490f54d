"""Copies and backups of key-value stores: every record as it is, or as ``storage.dump``."""
