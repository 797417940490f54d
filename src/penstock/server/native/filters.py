"""Filters for editors: whether a text is one, and how it may go on at the cursor.

Both depend on the text alone and reveal nothing about a tenant. A text is bounded, so checking it
takes at most 20 ms.
"""

from __future__ import annotations

from typing import Final

from penstock.errors import BadInput, TooLarge
from penstock.filters import Completions, Diagnosis, complete, validate
from penstock.server.call import Call
from penstock.server.request_parsing import Body
from penstock.server.routing import ANY_NAME, Empty, Need, Route
from penstock.wire.bodies import CompleteBody, ValidateBody
from penstock.wire.codecs import JSON

__all__ = ["ROUTES"]


async def validate_filter(call: Call, query: Empty, body: ValidateBody) -> Diagnosis:  # noqa: ARG001
    """Whether the text is a filter, and where it is wrong."""
    return validate(body.text)


async def complete_filter(call: Call, query: Empty, body: CompleteBody) -> Completions:  # noqa: ARG001
    """How the text may go on at the cursor."""
    return complete(body.text, body.cursor, body.headers)


_ANY_READER: Final = Need("read", ANY_NAME)

ROUTES: Final = (
    Route(
        method="POST",
        path="/v1/filters/validate",
        verb="validate_filter",
        summary="Check a filter; the answer says where it is wrong",
        need=_ANY_READER,
        handler=validate_filter,
        query=Empty,
        body=Body(ValidateBody),
        replies=((JSON, Diagnosis),),
        errors=(BadInput,),
        tag="filters",
    ),
    Route(
        method="POST",
        path="/v1/filters/complete",
        verb="complete_filter",
        summary="How a filter may go on at the cursor: names, functions, keywords, operators",
        need=_ANY_READER,
        handler=complete_filter,
        query=Empty,
        body=Body(CompleteBody),
        replies=((JSON, Completions),),
        errors=(BadInput, TooLarge),
        tag="filters",
    ),
)
