"""The key-value engine: the contract over an ordered store of bytes.

docs/formats.md describes the records. Only the modules under ``adapters/`` know a particular store.
There is one writer with group commit; replies are sent after their commit.
"""
