"""Routes as data: what each path accepts, returns and needs, in one table.

Dispatch, access checks, metrics and the OpenAPI document all read the same ``Route``, so they
cannot disagree. Paths are looked up in a tree of segments, and the most recent ones are cached.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import cached_property
from types import UnionType
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeAlias, TypeVar

from msgspec import Struct

from penstock.errors import MethodNotAllowed, PenstockError, UnknownRoute
from penstock.model.limits import shown

if TYPE_CHECKING:
    from penstock.server.call import Call
    from penstock.server.request_parsing import Body

__all__ = ["ANYONE", "ANY_NAME", "EVERYTHING", "AnyRoute", "Empty", "Need", "Route", "Routes"]

Q = TypeVar("Q")
B = TypeVar("B")


class Empty(Struct, frozen=True, forbid_unknown_fields=True):
    """No query parameters, or no body."""


class Need(Struct, frozen=True):
    """The grant that a route requires: an action on the name in a path parameter.

    Without a parameter the action must be granted on every name of the tenant. ``any`` requires
    the action on at least one name: the handler returns only what the grants cover.
    """

    action: str | None
    parameter: str | None = None
    or_read: bool = False
    """Whether ``read`` on the name is enough too."""


#: No credential needed: health and the OpenAPI document reveal nothing about a tenant.
ANYONE: Final = Need(None)
#: Instead of a path parameter: a grant on any name is enough.
ANY_NAME: Final = "any"
#: A grant on every name.
EVERYTHING: Final = "*"


class Route(Struct, Generic[Q, B], frozen=True, kw_only=True, dict=True):
    """One method of one path."""

    method: str
    path: str
    verb: str
    """The operation's name in docs/semantics.md; also the operation id and a metric label."""
    summary: str
    need: Need
    handler: Callable[[Call, Q, B], Awaitable[object]]
    query: type[Q]
    body: Body[B] | None = None
    status: int = 200
    replies: tuple[tuple[str, type | UnionType | None], ...] = ()
    """The content types of replies, each with its type; None means bytes."""
    errors: tuple[type[PenstockError], ...] = ()
    tag: str = "queues"
    claims: bool = False
    """A GET that hands out deliveries: web pages of other sites must not be able to send it."""
    is_page: bool = False
    """A file of the console: any page may link to it, and it is not part of the API."""
    is_raw: bool = False
    """The handler decodes the body itself, by its content type and the headers."""

    @cached_property
    def no_query(self) -> Q | None:
        """The query of a URL without parameters; None if a parameter is required."""
        try:
            return self.query()
        except TypeError:
            return None


#: Paths cached with their routes, and the length of the longest one: at most 1 MiB together.
_MAX_REMEMBERED: Final = 1_024
_MAX_REMEMBERED_PATH: Final = 512

#: A route with any query and body.
AnyRoute: TypeAlias = Route[Any, Any]


class Routed(Protocol):
    """What is found by method and path."""

    @property
    def method(self) -> str:
        """The HTTP method."""
        ...

    @property
    def path(self) -> str:
        """The path, with parameters in braces."""
        ...


R = TypeVar("R", bound=Routed)


class Routes(Generic[R]):
    """Finds routes in a tree of path segments."""

    def __init__(self, routes: Iterable[R]) -> None:
        self.all: tuple[R, ...] = tuple(routes)
        self._root: _Node[R] = _Node()
        #: What was found for a method and path; callers use the same few again and again.
        self._found: dict[tuple[str, str], tuple[R, tuple[str, ...]]] = {}
        for route in self.all:
            self._root.add(route)

    def find(self, method: str, path: str) -> tuple[R, tuple[str, ...]]:
        """The route, and the values of its path parameters in order."""
        key = (method, path)
        found = self._found.get(key)
        if found is None:
            found = self._look_up(method, path)
            if len(path) <= _MAX_REMEMBERED_PATH:
                if len(self._found) >= _MAX_REMEMBERED:
                    self._found.clear()
                self._found[key] = found
        return found

    def _look_up(self, method: str, path: str) -> tuple[R, tuple[str, ...]]:
        node = self._root
        values: list[str] = []
        for segment in path.split("/"):
            child = node.literal.get(segment)
            if child is None:
                child = node.parameter
                if child is None or not segment:
                    raise UnknownRoute(f"There is no path {shown(path)}.")
                values.append(segment)
            node = child
        route = node.methods.get(method)
        if route is None:
            if not node.methods:
                raise UnknownRoute(f"There is no path {shown(path)}.")
            raise MethodNotAllowed(
                f"{shown(path)} takes {', '.join(sorted(node.methods))}.",
                limit=", ".join(sorted(node.methods)),
            )
        return route, tuple(values)


class _Node(Generic[R]):
    __slots__ = ("literal", "methods", "parameter")

    def __init__(self) -> None:
        self.literal: dict[str, _Node[R]] = {}
        self.parameter: _Node[R] | None = None
        self.methods: dict[str, R] = {}

    def add(self, route: R) -> None:
        node: _Node[R] = self
        for segment in route.path.split("/"):
            if segment.startswith("{"):
                node.parameter = node.parameter or _Node()
                node = node.parameter
            else:
                node = node.literal.setdefault(segment, _Node())
        assert route.method not in node.methods, f"{route.method} {route.path} is there twice"
        node.methods[route.method] = route
