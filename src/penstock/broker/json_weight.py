"""The amount of work that a JSON Schema can cause, measured before it is used.

Checking one value with a schema unfolds its references. Thirty definitions that each name
the next one twice unfold into a thousand million subschemas, in a schema of 2 KiB; and a
chain of a thousand references recurses a thousand frames deep per level of the payload.
``weigh`` follows the references once and refuses both. A reference back into a schema that
is being unfolded is a loop. The validator cuts or memoizes it, so it weighs nothing;
``described`` needs to know it.

References are resolved as far as the weight needs it. The validator refuses references
that lead nowhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import unquote, urljoin

from msgspec import Struct

from penstock.errors import BadSchema

__all__ = ["MAX_PATH", "MAX_WEIGHT", "Weight", "described", "weigh"]

#: Subschemas that a value and its surroundings are checked against, at 15 ns each.
MAX_WEIGHT: Final = 20_000
#: Nested subschemas, with references followed. Each takes some 100 bytes of the stack per
#: level of the payload: 64 times this many fit into a thread's 2 MiB.
MAX_PATH: Final = 100

_ONE: Final = (
    "additionalItems",
    "additionalProperties",
    "contains",
    "contentSchema",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
)
_LISTS: Final = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
_MAPS: Final = ("dependencies", "dependentSchemas", "patternProperties")
_DEFINITIONS: Final = ("$defs", "definitions")
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_ALTERNATIVES: Final = ("anyOf", "oneOf")


class Weight(Struct, frozen=True):
    """The result of weighing a schema."""

    loops: frozenset[int]
    """The subschemas, by identity, whose references close a loop."""
    unevaluated: bool
    """Whether something depends on what alternatives have evaluated."""
    patterns: int
    """Regular expressions to compile."""


def weigh(schema: object) -> Weight:
    """Refuse a schema that could take too long or recurse too deep; returns where it loops."""
    scales = _Scales(schema)
    weight, _ = scales.weigh(schema, 1)
    if scales.loops:
        # The validator memoizes a loop from its second round on. The first round repeats
        # everything that is unfolded several times.
        _check_weight(weight * weight // scales.distinct)
    return Weight(frozenset(scales.loops), scales.unevaluated, scales.patterns)


def described(schema: Any, weight: Weight) -> Any:
    """A schema that describes where a value that does not match goes wrong.

    Alternatives and loops become ``not not``: the validator then tests them and collects no
    errors inside. Annotations do not leave a ``not``, so where they matter
    (``unevaluatedProperties``) nothing is described.
    """
    if not isinstance(schema, dict):
        return schema
    if weight.unevaluated:
        return True
    out = dict(schema)
    for keyword, part in schema.items():
        if keyword in (*_MAPS, *_DEFINITIONS, "properties"):
            if isinstance(part, dict):
                out[keyword] = {name: described(sub, weight) for name, sub in part.items()}
        elif keyword in _LISTS and isinstance(part, list):
            out[keyword] = [described(sub, weight) for sub in part]
        elif keyword in _ONE:
            out[keyword] = described(part, weight)
    tested = [{name: out.pop(name)} for name in _ALTERNATIVES if name in out]
    if id(schema) in weight.loops:
        tested += [{name: out.pop(name)} for name in _REFERENCES if name in out]
    if tested:
        out["allOf"] = [*out.get("allOf", ()), *({"not": {"not": part}} for part in tested)]
    return out


class _Scales:
    """Weighs one schema."""

    def __init__(self, schema: object) -> None:
        self.loops: set[int] = set()
        self.unevaluated = False
        self.patterns = 0
        self._bases: dict[int, str] = {}
        self._places: dict[str, Any] = {}
        self._dynamic: dict[str, list[Any]] = {}
        #: Per unfolded subschema: its number of subschemas, and their depth.
        self._sizes: dict[int, tuple[int, int]] = {}
        self._unfolding: set[int] = set()
        self._index(schema, "")
        self._places.setdefault("", schema)

    @property
    def distinct(self) -> int:
        """How many distinct subschemas were unfolded."""
        return len(self._sizes)

    def weigh(self, schema: Any, path: int) -> tuple[int, int]:
        """The weight and the height of a schema at depth ``path``."""
        if not isinstance(schema, dict):
            return 1, 1
        key = id(schema)
        if key in self._sizes:
            weight, height = self._sizes[key]
        else:
            _check_path(path)
            weight, height = self._unfolded(schema, path)
            self._sizes[key] = weight, height
        _check_path(path + height - 1)
        _check_weight(weight)
        return weight, height

    def _unfolded(self, schema: dict[str, Any], path: int) -> tuple[int, int]:
        key = id(schema)
        self._unfolding.add(key)
        targets = []
        for target in self._targets(schema):
            if id(target) in self._unfolding:
                self.loops.add(key)
            else:
                targets.append(target)
        together = [self.weigh(sub, path + 1) for sub in (*_together(schema), *targets)]
        # A value has one name, so only the heaviest of these counts.
        apart = [self.weigh(sub, path + 1) for sub in _apart(schema)]
        self._unfolding.discard(key)
        weight = sum(size[0] for size in together) + max((size[0] for size in apart), default=0)
        height = max((size[1] for size in (*together, *apart)), default=0)
        return weight + 1, height + 1

    def _index(self, schema: Any, base: str) -> None:
        """Index the identifiers and anchors that references can name."""
        if not isinstance(schema, dict):
            return
        identifier = schema.get("$id")
        if isinstance(identifier, str):
            base = _joined(base, identifier)
            self._places.setdefault(base.removesuffix("#"), schema)
        self._bases[id(schema)] = base
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(schema.get(keyword), str):
                self._places.setdefault(f"{base.partition('#')[0]}#{schema[keyword]}", schema)
        for name in (schema.get("$dynamicAnchor"), schema.get("$recursiveAnchor")):
            if isinstance(name, str) or name is True:
                self._dynamic.setdefault("" if name is True else name, []).append(schema)
        names = schema.get("patternProperties")
        self.patterns += ("pattern" in schema) + (len(names) if isinstance(names, dict) else 0)
        self.unevaluated |= any(name.startswith("unevaluated") for name in schema)
        for sub in (*_together(schema), *_apart(schema), *_in_maps(schema, _DEFINITIONS)):
            self._index(sub, base)

    def _targets(self, schema: dict[str, Any]) -> Iterator[Any]:
        for keyword in _REFERENCES:
            reference = schema.get(keyword)
            if not isinstance(reference, str):
                continue
            place = _joined(self._bases.get(id(schema), ""), reference)
            target = self._resolved(place)
            if target is not None:
                yield target
            if keyword != "$ref":
                # The target depends on the dynamic path, so all candidates count.
                yield from self._dynamic.get(place.partition("#")[2], ())

    def _resolved(self, place: str) -> Any:
        if place.removesuffix("#") in self._places:
            return self._places[place.removesuffix("#")]
        url, _, fragment = place.partition("#")
        if not fragment.startswith("/"):
            return None
        target = self._places.get(url)
        for step in unquote(fragment).split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(target, dict):
                target = target.get(name)
            elif isinstance(target, list):
                target = dict(zip(map(str, range(len(target))), target, strict=True)).get(name)
            else:
                return None
        return target if isinstance(target, dict) else None


def _check_weight(weight: int) -> None:
    if weight > MAX_WEIGHT:
        raise BadSchema(f"The JSON Schema unfolds into more than {MAX_WEIGHT} subschemas.")


def _check_path(path: int) -> None:
    if path > MAX_PATH:
        raise BadSchema(
            f"The JSON Schema has more than {MAX_PATH} subschemas and references inside each other."
        )


def _joined(base: str, reference: str) -> str:
    # urljoin handles only hierarchical schemes; urn:a and #b still have to make urn:a#b.
    if reference.startswith("#"):
        return base.partition("#")[0] + reference
    try:
        return urljoin(base, reference)
    except ValueError:
        return reference


def _together(schema: dict[str, Any]) -> Iterator[Any]:
    """The subschemas that may all be applied to one value, or to one part of it."""
    for keyword in _ONE:
        if isinstance(schema.get(keyword), dict):
            yield schema[keyword]
    for keyword in _LISTS:
        if isinstance(schema.get(keyword), list):
            yield from schema[keyword]
    yield from _in_maps(schema, _MAPS)


def _apart(schema: dict[str, Any]) -> Iterator[Any]:
    """The subschemas that each apply to a different part of the value."""
    yield from _in_maps(schema, ("properties",))


def _in_maps(schema: dict[str, Any], keywords: tuple[str, ...]) -> Iterator[Any]:
    for keyword in keywords:
        if isinstance(schema.get(keyword), dict):
            yield from schema[keyword].values()
