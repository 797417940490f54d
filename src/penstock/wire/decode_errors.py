"""What is wrong with a value that does not decode: the field, and the values it may have.

msgspec says where a value is wrong, but not the name of a missing or unknown field as a path, and
not which values are allowed. Both are needed to correct the call (E1).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from msgspec import inspect

__all__ = ["explain"]

#: msgspec ends its messages with the position: "… - at `$.messages[3].priority`".
_PATH: Final = re.compile(r" - at `\$\.?(?P<path>.*)`$")
_NAMED: Final = re.compile(r"(?:unknown|missing required) field `(?P<name>.*?)`")
_NO_CHOICE: Final = ("Invalid enum value", "Invalid value")
_STEP: Final = re.compile(r"\[[^]]*\]|[^.[]+")
#: Each is asked for by one decoder of a body or a query.
_KINDS: Final = 256


def explain(error: Exception, kind: object) -> tuple[str, str]:
    """The path of the field at fault, empty if none is known, and the text for the caller.

    ``kind`` is the type that the value was decoded as.
    """
    text = str(error)
    found = _PATH.search(text)
    path = "" if found is None else found["path"]
    if text.startswith(_NO_CHOICE):
        choices = _choices(kind, path)
        if choices:
            text += "; there are " + ", ".join(choices)
    named = _NAMED.search(text)
    if named is not None:
        path = f"{path}.{named['name']}" if path else named["name"]
    return path, text


def _choices(kind: object, path: str) -> list[str]:
    """The values of the enum, the literal or the tag at ``path`` of a type."""
    kinds = [_info(kind)]
    for step in _STEP.findall(path):
        kinds = [inner for outer in kinds for inner in _inside(outer, step)]
    return [str(value) for leaf in kinds for value in _values(leaf)]


@lru_cache(maxsize=_KINDS)
def _info(kind: object) -> inspect.Type:
    return inspect.type_info(kind)


def _inside(kind: inspect.Type, step: str) -> list[inspect.Type]:
    """The types of a field, or of an item if ``step`` is in brackets. A tag leads to itself."""
    match kind:
        case inspect.Metadata(type=inner):
            return _inside(inner, step)
        case inspect.UnionType(types=kinds):
            return [inner for each in kinds for inner in _inside(each, step)]
        case inspect.StructType(fields=fields, tag_field=tag_field):
            if step == tag_field:
                return [kind]
            return [field.type for field in fields if field.encode_name == step]
        case inspect.DictType(value_type=value):
            return [value]
        case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item):
            return [item]
    return []


def _values(kind: inspect.Type) -> list[object]:
    match kind:
        case inspect.Metadata(type=inner):
            return _values(inner)
        case inspect.UnionType(types=kinds):
            return [value for each in kinds for value in _values(each)]
        case inspect.EnumType(cls=enum):
            return [member.value for member in enum]
        case inspect.LiteralType(values=values):
            return list(values)
        case inspect.StructType(tag=tag) if tag is not None:
            return [tag]
    return []
