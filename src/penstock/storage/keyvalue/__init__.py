"""The key-value engine: the contract over an ordered store of bytes.

The records are those of docs/formats.md; the adapters under ``adapters/`` are all that
knows a particular store. One writer, group commit, replies after their commit.
"""
