"""What a state says, in text: no store and no loader is needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchdata_insitu.errors import StateError
from torchdata_insitu.loader_state import FORMAT as LOADER_FORMAT
from torchdata_insitu.planning.cursor import FORMAT as NODE_FORMAT
from torchdata_insitu.planning.cursor import check_format, whole_field
from torchdata_insitu.planning.mix_cursor import MIX_FORMAT

__all__ = ["describe_state"]

_OWNERS = {LOADER_FORMAT: "a loader", NODE_FORMAT: "a node", MIX_FORMAT: "a MixNode"}
_ORDER_FIELDS = ("order", "seed", "shuffle", "block_chunks", "run_chunks", "space", "n")

type _Lines = list[tuple[str, str]]


def describe_state(state: Any) -> str:
    """Where a loader or a node stood that was saved, and what its plan was.

    Whether a loader of today can go on from there, its `load_state_dict` says.

    Args:
        state: what `state_dict` gave, of an `InSituLoader` or of a node of ours.

    Returns:
        Lines of text, each with a heading.

    Raises:
        StateError: it is a state of something else, of a newer version, or not complete; says
            what it is, or what is missing.

    Example:
        >>> import torchdata_insitu as tdi
        >>> from torchdata_insitu.testing import make_store
        >>> store = make_store({"t2m": (12, 2, 3)}, chunks=(4, 2, 3))
        >>> arrays = tdi.open_arrays(store)
        >>> with tdi.build_loader(store, arrays, batch_size=4, budget_bytes="10%") as loader:
        ...     _ = next(iter(loader))
        ...     print(tdi.describe_state(loader.state_dict()))
        state    of a loader, torchdata_insitu.loader version 1
        place    epoch 0, position 4 of 12 draws (33.3 %); 1 batches on each rank; 1 lanes
        order    shuffled with seed 0: blocks of 16 units, runs of 1; order version 1
        draws    12 of kind 'anchor'
        digests  units c1821ee4d431415a, arrays 4d910ba18e0a75fe, offsets 21f1ba7382c883b1
    """
    found = state.get("format") if isinstance(state, Mapping) else None
    # Of a format that is none of ours, this says what it is.
    name = found if isinstance(found, str) and found in _OWNERS else LOADER_FORMAT
    check_format(state, name)
    lines = [("state", f"of {_OWNERS[name]}, {name} version {state['version']}")]
    lines += _mix_lines(state) if "cursors" in state else _cursor_lines(state)
    nodes = state.get("nodes")
    if nodes is not None:
        graph = nodes.get("graph") if isinstance(nodes, Mapping) else nodes
        lines.append(("nodes", f"with the state of other nodes after the gather, of {graph}"))
    return "\n".join(f"{heading:<8} {text}" for heading, text in lines)


def _cursor_lines(state: Mapping[str, Any]) -> _Lines:
    plan = _plan_of(state, _ORDER_FIELDS)
    n = whole_field(plan, "n")
    position = whole_field(state, "position", 0, n)
    place = f"epoch {whole_field(state, 'epoch')}, {_position_text(position, n)}"
    if "step" in state:
        place += f"; {whole_field(state, 'step')} batches on each rank"
    elif state.get("format") == LOADER_FORMAT:
        raise _incomplete("state", "step")
    place += f"; {whole_field(state, 'lanes', 1)} lanes"
    if state.get("origin") is not None:
        place += f"; inside the batch that begins at {whole_field(state, 'origin')}"
    order = "in the order of the store"
    if plan["shuffle"]:
        order = f"shuffled with seed {plan['seed']}"
    order += (
        f": blocks of {plan['block_chunks']} units, runs of {plan['run_chunks']}; order version "
        f"{plan['order']}"
    )
    others = [f"{name} {value}" for name, value in plan.items() if name not in _ORDER_FIELDS]
    return [
        ("place", place),
        ("order", order),
        ("draws", f"{n} of kind {plan['space']!r}"),
        ("digests", ", ".join(others)),
    ]


def _position_text(position: int, n: int) -> str:
    share = 100 * position / n if n else 100
    return f"position {position} of {n} draws ({share:.1f} %)"


def _mix_lines(state: Mapping[str, Any]) -> _Lines:
    plan = _plan_of(state, ("order", "seed", "stop", "weights"))
    weights, cursors = plan["weights"], state["cursors"]
    if not isinstance(weights, Mapping) or not isinstance(cursors, Mapping):
        raise _incomplete("state", "cursors" if isinstance(weights, Mapping) else "weights")
    shares = ", ".join(f"{name} {weight}" for name, weight in weights.items())
    exhausted = state.get("exhausted") or "none"
    n_steps = f"{whole_field(state, 'step')} batches on each rank"
    choices = f"by weight: {shares}; seed {plan['seed']}, stop {plan['stop']!r}"
    lines = [
        ("place", f"epoch {whole_field(state, 'epoch')}; {n_steps}; exhausted: {exhausted}"),
        ("mix", f"{choices}; order version {plan['order']}"),
    ]
    for name, cursor in cursors.items():
        try:
            check_format(cursor, NODE_FORMAT)
            inner = _cursor_lines(cursor)
        except StateError as error:
            raise StateError(f"of source {name!r}, {error}") from error
        lines.append(("source", str(name)))
        lines += [(f"  {heading}", text) for heading, text in inner]
    return lines


def _plan_of(state: Mapping[str, Any], fields: tuple[str, ...]) -> Mapping[str, Any]:
    plan = state.get("plan")
    if not isinstance(plan, Mapping):
        raise _incomplete("state", "plan")
    for field in fields:
        if field not in plan:
            raise _incomplete("plan of the state", field)
    return plan


def _incomplete(what: str, field: str) -> StateError:
    return StateError(f"the {what} has no {field}: it is not complete")
