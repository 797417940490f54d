"""A value that does not decode: the field at fault, and the values that it may have."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

import msgspec
import pytest
from msgspec import Meta, Struct

from penstock.errors import BadInput
from penstock.testing.laws import law
from penstock.wire.codecs import Codec


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Keep(Struct, tag_field="verb", tag="keep", forbid_unknown_fields=True):
    days: int


class Drop(Struct, tag_field="verb", tag="drop", forbid_unknown_fields=True):
    colour: Colour | None = None


class Body(Struct, forbid_unknown_fields=True):
    items: list[Keep | Drop]
    order: Literal["given", "fair"] = "given"
    by_name: dict[str, Annotated[Literal["a", "b"], Meta(description="One of two.")]] = {}


@law("E1")
@pytest.mark.parametrize(
    "body, field, end",
    [
        ({}, "items", "missing required field `items`."),
        ({"items": [{"verb": "keep"}]}, "items[0].days", "at `$.items[0]`."),
        ({"items": [], "nope": 1}, "nope", "unknown field `nope`."),
        ({"items": [{"verb": "drop", "x": 1}]}, "items[0].x", "at `$.items[0]`."),
        ({"items": [], "order": "x"}, "order", "; there are fair, given."),
        ({"items": [], "by_name": {"n": "c"}}, "by_name[...]", "; there are a, b."),
        ({"items": [{"verb": "x"}]}, "items[0].verb", "; there are keep, drop."),
        ({"items": [{"verb": "drop", "colour": "x"}]}, "items[0].colour", "are red, blue."),
        ({"items": [{"verb": "drop", "colour": 5}]}, "items[0].colour", "items[0].colour`."),
        ([], "body", "got `array`."),
    ],
)
def test_the_error_names_the_field_and_its_choices(body: object, field: str, end: str) -> None:
    codec = Codec(Body)
    for decode, raw in (
        (codec.from_json, msgspec.json.encode(body)),
        (codec.from_msgpack, msgspec.msgpack.encode(body)),
    ):
        with pytest.raises(BadInput) as refused:
            decode(raw)
        assert refused.value.field == field
        assert refused.value.detail.endswith(end)
