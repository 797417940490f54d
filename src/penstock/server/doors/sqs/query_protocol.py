"""The Query protocol: a form as the members of a JSON request, and a reply as XML.

A member ``SendMessageBatchRequestEntry.2.MessageAttribute.1.Value.StringValue`` is a path of names
and numbers. The tables below give each name of a list or map its member in the JSON protocol, so
both protocols have the same requests and replies.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import parse_qsl, unquote_to_bytes

from penstock.server.doors.sqs.characters import replace_invalid
from penstock.server.doors.sqs.failures import Failure, SqsError

__all__ = ["error_xml", "read_form", "reply_xml", "to_request"]

_NAMESPACE: Final = "http://queue.amazonaws.com/doc/2012-11-05/"
#: A batch of ten messages with ten attributes each has 400 fields.
_MAX_FIELDS: Final = 2_000
#: Names and numbers in one path.
_MAX_DEPTH: Final = 8

#: In a form: the name of a list's items, and its member.
_LISTS: Final = {
    "AWSAccountId": "AWSAccountIds",
    "ActionName": "Actions",
    "AttributeName": "AttributeNames",
    "ChangeMessageVisibilityBatchRequestEntry": "Entries",
    "DeleteMessageBatchRequestEntry": "Entries",
    "MessageAttributeName": "MessageAttributeNames",
    "MessageSystemAttributeName": "MessageSystemAttributeNames",
    "SendMessageBatchRequestEntry": "Entries",
    "TagKey": "TagKeys",
}
_LIST_MEMBERS: Final = frozenset(_LISTS.values())
#: In a form: the name of a map's entries, its member, and the names of key and value.
_MAPS: Final = {
    "Attribute": ("Attributes", "Name", "Value"),
    "MessageAttribute": ("MessageAttributes", "Name", "Value"),
    "MessageSystemAttribute": ("MessageSystemAttributes", "Name", "Value"),
    "Tag": ("Tags", "Key", "Value"),
}
#: In a reply: a list's member, and the element of its items. ``Successful`` depends on the action.
_ITEMS: Final = {
    "Failed": "BatchResultErrorEntry",
    "Messages": "Message",
    "QueueUrls": "QueueUrl",
    "Results": "ListMessageMoveTasksResultEntry",
    "queueUrls": "QueueUrl",
}
#: In a reply: a map's member, the element of its entries, and those of key and value.
_ENTRIES: Final = {
    "Attributes": ("Attribute", "Name", "Value"),
    "MessageAttributes": ("MessageAttribute", "Name", "Value"),
    "Tags": ("Tag", "Key", "Value"),
}
#: Operations whose reply has no result element.
_NO_RESULT: Final = frozenset(
    {
        *("AddPermission", "ChangeMessageVisibility", "DeleteMessage", "DeleteQueue"),
        *("PurgeQueue", "RemovePermission", "SetQueueAttributes", "TagQueue", "UntagQueue"),
    }
)
#: A form up to this size is read in one step, and so is a part of a larger one.
_DIRECT_BYTES: Final = 16 * 1024
#: Characters of a text that are escaped in one step.
_DIRECT_CHARACTERS: Final = 32 * 1024
#: Characters of a reply that are encoded in one step.
_PART_CHARACTERS: Final = 128 * 1024
_ESCAPES: Final = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "\r": "&#13;"})


async def read_form(text: bytes) -> dict[str, str]:
    """The fields of a form or a query string; a large one is read in steps.

    A mebibyte of escaped characters takes half a second, so other calls run meanwhile.
    """
    try:
        if len(text) > _DIRECT_BYTES:
            return await _read_large_form(text)
        pairs = parse_qsl(
            text.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=_MAX_FIELDS,
        )
    except ValueError as error:
        raise SqsError("MalformedQueryString", "The form cannot be read.") from error
    return dict(pairs)


async def _read_large_form(text: bytes) -> dict[str, str]:
    if not text.isascii() or text.count(b"&") >= _MAX_FIELDS:
        raise ValueError("The form is not ASCII, or has too many fields.")
    fields: dict[str, str] = {}
    for field in text.split(b"&"):
        if field:
            name, _, value = field.partition(b"=")
            fields[await _unquoted(name)] = await _unquoted(value)
    return fields


async def _unquoted(text: bytes) -> str:
    parts: list[bytes] = []
    begin = 0
    while begin < len(text):
        end = begin + _DIRECT_BYTES
        # An escape such as %3C is in one part.
        cut = text.rfind(b"%", end - 2, end)
        end = end if cut < 0 else cut
        parts.append(unquote_to_bytes(text[begin:end].replace(b"+", b" ")))
        begin = end
        await asyncio.sleep(0)
    return b"".join(parts).decode()


def to_request(fields: dict[str, str]) -> dict[str, Any]:
    """The members of the JSON request that a form stands for."""
    tree: dict[str, Any] = {}
    for path, value in fields.items():
        names = path.split(".")
        if len(names) > _MAX_DEPTH:
            raise SqsError("MalformedQueryString", f"The parameter {path[:200]} is too deep.")
        node = tree
        for name in names[:-1]:
            inner = node.setdefault(name, {})
            if not isinstance(inner, dict):
                raise _twice(path)
            node = inner
        if node.setdefault(names[-1], value) is not value:
            raise _twice(path)
    members = _members(tree)
    if "Tags" in members and fields.get("Action") == "CreateQueue":
        members["tags"] = members.pop("Tags")
    return members


def _members(tree: dict[str, Any]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for name, value in tree.items():
        if name in _LISTS:
            members[_LISTS[name]] = list(_items(value))
        elif name in _MAPS:
            member, key, content = _MAPS[name]
            members[member] = dict(_pairs(value, key, content))
        elif value or name not in _LIST_MEMBERS:
            # An empty list is written as an empty text.
            members[name] = value
    return members


def _items(value: Any) -> Iterator[Any]:
    if not isinstance(value, dict):
        if value:
            yield value
        return
    for number in sorted(value, key=_number):
        item = value[number]
        yield _members(item) if isinstance(item, dict) else item


def _pairs(value: Any, key: str, content: str) -> Iterator[tuple[str, Any]]:
    for item in _items(value):
        if not isinstance(item, dict) or not isinstance(item.get(key), str):
            raise SqsError("MissingParameter", f"The request must contain the parameter {key}.")
        yield item[key], item.get(content, "")


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 6:
        raise SqsError("MalformedQueryString", f"{text[:200]} is not a number of an item.")
    return int(text)


def _twice(path: str) -> SqsError:
    return SqsError("MalformedQueryString", f"The parameter {path[:200]} is given twice.")


async def reply_xml(action: str, result: dict[str, Any], request_id: str) -> list[bytes]:
    """The reply to an operation, in one part or several; a large one is encoded in steps."""
    encoded: list[bytes] = []
    texts: list[str] = []
    size = 0
    for text in _reply(action, result, request_id):
        texts.append(text)
        size += len(text)
        if size > _PART_CHARACTERS:
            encoded.append("".join(texts).encode())
            texts, size = [], 0
            await asyncio.sleep(0)
    return [*encoded, "".join(texts).encode()]


def _reply(action: str, result: dict[str, Any], request_id: str) -> Iterator[str]:
    yield f'<?xml version="1.0"?><{action}Response xmlns="{_NAMESPACE}">'
    if action not in _NO_RESULT:
        yield f"<{action}Result>"
        yield from _structure(result, action)
        yield f"</{action}Result>"
    yield f"<ResponseMetadata><RequestId>{request_id}</RequestId></ResponseMetadata>"
    yield f"</{action}Response>"


def error_xml(failure: Failure, request_id: str) -> bytes:
    """The reply for an error."""
    fault = "Sender" if failure.is_sender_fault else "Receiver"
    return (
        f'<?xml version="1.0"?><ErrorResponse xmlns="{_NAMESPACE}"><Error><Type>{fault}</Type>'
        f"<Code>{_text(failure.code)}</Code>"
        f"<Message>{_text(replace_invalid(failure.message))}</Message><Detail/>"
        f"</Error><RequestId>{request_id}</RequestId></ErrorResponse>"
    ).encode()


def _structure(members: dict[str, Any], action: str) -> Iterator[str]:
    for name, value in members.items():
        if isinstance(value, list):
            item = _ITEMS.get(name) or f"{action}ResultEntry"
            for one in value:
                yield from _element(item, one, action)
        elif name in _ENTRIES:
            entry, key, content = _ENTRIES[name]
            for of, one in value.items():
                yield f"<{entry}><{key}>{_text(of)}</{key}>"
                yield from _element(content, one, action)
                yield f"</{entry}>"
        else:
            yield from _element(name, value, action)


def _element(name: str, value: Any, action: str) -> Iterator[str]:
    if isinstance(value, dict):
        yield f"<{name}>"
        yield from _structure(value, action)
        yield f"</{name}>"
    elif isinstance(value, str) and len(value) > _DIRECT_CHARACTERS:
        yield f"<{name}>"
        for begin in range(0, len(value), _DIRECT_CHARACTERS):
            yield _text(value[begin : begin + _DIRECT_CHARACTERS])
        yield f"</{name}>"
    else:
        yield f"<{name}>{_text(value)}</{name}>"


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value).translate(_ESCAPES)
