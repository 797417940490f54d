"""What crosses the network: bodies, their codecs, and errors as problem documents.

Server and client read and write the same structs, so that they cannot disagree. A body is
JSON for people and MessagePack for programs; both carry the same fields. What only one of the
two can express, raw bytes inside JSON, is in ``penstock.wire.payloads``.
"""
