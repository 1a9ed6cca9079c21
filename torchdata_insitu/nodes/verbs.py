"""Nodes that know the verbs, and how they are all told at once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, TypeVar

from torchdata.nodes import BaseNode

from torchdata_insitu.nodes.graph import walk

__all__ = ["NodeWithVerbs", "interrupt", "nodes_of_ours", "shut_down"]

T = TypeVar("T")


class NodeWithVerbs(BaseNode[T]):
    """A node that can be sought, woken and ended. They are called directly.

    Stock nodes in between hand on nothing but `reset`.
    """

    @property
    def n_ready(self) -> int:
        """Items that are made already, so that as many calls of `next` cost nothing."""
        return 0

    @abstractmethod
    def seek(self, cursor: Any) -> None:
        """Let the next `reset(None)` start at a place."""

    @abstractmethod
    def interrupt(self) -> None:
        """Wake a blocked `next`; it raises `ClosedError` and the node can be reset."""

    @abstractmethod
    def shutdown(self) -> None:
        """Return threads, leases and reads; idempotent, and a later reset starts anew."""


def nodes_of_ours(root: BaseNode[Any]) -> list[NodeWithVerbs[Any]]:
    """The nodes at and below `root` that know the verbs, the root first."""
    return [node for node in walk(root) if isinstance(node, NodeWithVerbs)]


def interrupt(nodes: Iterable[NodeWithVerbs[Any]]) -> None:
    """Wake every `next` that is blocked."""
    for node in nodes:
        node.interrupt()


def shut_down(nodes: Iterable[NodeWithVerbs[Any]]) -> None:
    """End every thread, lease and read of nodes; each is woken before one is waited for."""
    nodes = list(nodes)
    interrupt(nodes)
    for node in nodes:
        node.shutdown()
