"""A named table of plug-ins: ours by decorator, third parties' through an entry point."""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from typing import Generic, TypeVar

from behaviortrace.errors import BehaviorTraceError

T = TypeVar("T")


class Registry(Generic[T]):
    """Plug-ins of one kind, by name.

    Args:
        kind: what an entry is called in messages, such as "behaviour".
        group: entry-point group through which other packages add theirs; loading an entry point
            must run its registration (point it at the decorated function or at its module).
    """

    def __init__(self, kind: str, group: str) -> None:
        self.kind = kind
        self.group = group
        self._entries: dict[str, T] = {}
        self._loaded = False

    def register(self, *, name: str) -> Callable[[T], T]:
        """Decorator that enters a plug-in under ``name``.

        Raises:
            BehaviorTraceError: the name is taken by another plug-in.
        """

        def enter(entry: T) -> T:
            known = self._entries.get(name)
            if known is not None and known is not entry:
                raise BehaviorTraceError(
                    f"two {self.kind}s are named {name!r}; rename one or uninstall its package"
                )
            self._entries[name] = entry
            return entry

        return enter

    def names(self) -> list[str]:
        """All names, sorted."""
        self._load()
        return sorted(self._entries)

    def get(self, name: str) -> T:
        """The plug-in of a name.

        Raises:
            BehaviorTraceError: no such plug-in; the message lists those there are.
        """
        self._load()
        if name not in self._entries:
            raise BehaviorTraceError(
                f"no {self.kind} named {name!r}; choose one of {', '.join(sorted(self._entries))}"
            )
        return self._entries[name]

    def _load(self) -> None:
        if self._loaded:
            return
        self._loaded = True
        for point in metadata.entry_points(group=self.group):
            try:
                point.load()
            except (ImportError, AttributeError) as error:
                self._loaded = False
                raise BehaviorTraceError(
                    f"{self.kind} plug-in {point.name!r} ({point.value}) fails to load: {error}; "
                    "mend or uninstall it"
                ) from error
