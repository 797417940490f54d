"""The network formats: bodies, their codecs, and errors as problem documents.

Server and client use the same structs, so that they cannot disagree. A body is JSON for people
and MessagePack for programs; both carry the same fields. ``penstock.wire.payloads`` represents
raw bytes in JSON.
"""
