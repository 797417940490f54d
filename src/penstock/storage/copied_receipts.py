"""Receipts from before a copy to an engine of another family (S1).

The deliveries that were in flight keep their receipts, so that workers go on after the switch. The
new engine stores each as a document, whose name is the receipt and whose value says which claim it
has become. A receipt cannot be guessed, and so neither can these names.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

import msgspec

from penstock.errors import StoreCorrupt

__all__ = ["RECEIPT_KIND", "Claim", "decode_claims", "encode_claim"]

#: The kind of the documents.
RECEIPT_KIND: Final = "penstock.receipt"
#: Four numbers that identify a claim of one delivery; the engine decides which.
Claim: TypeAlias = tuple[int, int, int, int]

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Claim).decode


def encode_claim(claim: Claim) -> bytes:
    """The value of the document."""
    return _encode(claim)


def decode_claims(documents: Iterable[tuple[str, bytes]]) -> dict[str, Claim]:
    """Claims by receipt."""
    try:
        return {receipt: _decode(value) for receipt, value in documents}
    except msgspec.MsgspecError as error:
        raise StoreCorrupt("A receipt from before a copy cannot be read.") from error
