"""Where a node of the chain stands."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from torchdata_insitu.errors import StateError

FORMAT = "torchdata_insitu.cursor"
_VERSION = 1
# What a fingerprint stands for, of which a message can show nothing else.
_MEANINGS = {
    "units": " (which samples are drawn, and how they are chunked)",
    "arrays": " (paths, fields, data types and packing of the arrays)",
    "offsets": " (names, arrays and offsets of the views)",
}
_FOREIGN = {
    "num_yielded": "a state of torchdata.nodes.Loader",
    "_snapshot": "a state of torchdata's StatefulDataLoader",
    "_num_yielded": "a state of torchdata's StatefulDataLoader",
    "_sampler_iter_state": "a state of torchdata's StatefulDataLoader",
}


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in the one global order of an epoch: the same on every rank.

    Example:
        >>> cursor = Cursor(epoch=3, position=96, lanes=4)
        >>> state = cursor.to_state({"seed": 7})
        >>> state["position"], Cursor.from_state(state, {"seed": 7}, n_draws=1000) == cursor
        (96, True)
    """

    epoch: int
    position: int
    """Draws handed out in this epoch, over all ranks."""
    lanes: int
    """Lanes of this epoch."""
    origin: int | None = None
    """Where the batch begins, for a node that yields segments and stands inside one: `position` is
    then the next one of its own rank. None: between two batches."""
    n_draws: int | None = None
    """Draws of this epoch, where the plan has more by now: it began before the data grew. None: as
    many as the plan has."""

    def between_batches(self, position: int) -> "Cursor":
        """The cursor of a place of the same epoch where a batch begins."""
        # By hand, for `dataclasses.replace` takes several times as long, and each batch has one.
        return Cursor(self.epoch, position, self.lanes, None, self.n_draws)

    def to_state(self, fingerprint: Mapping[str, Any]) -> dict[str, Any]:
        """Write the cursor as plain JSON, with the plan it belongs to.

        Args:
            fingerprint: What decides the order, `Plan.fingerprint()`.
        """
        state = {
            "format": FORMAT,
            "version": _VERSION,
            "epoch": self.epoch,
            "position": self.position,
            "lanes": self.lanes,
            "plan": dict(fingerprint),
        }
        if self.origin is not None:
            state["origin"] = self.origin
        return state

    @classmethod
    def from_state(
        cls,
        state: Mapping[str, Any],
        fingerprint: Mapping[str, Any],
        n_draws: int,
        *,
        format_name: str = FORMAT,
    ) -> Self:
        """Read a cursor back, if it was saved over this plan.

        Args:
            state: What `to_state` wrote.
            fingerprint: Of the plan that is to continue.
            n_draws: Draws in an epoch of that plan.
            format_name: The format the state has to be of; a loader writes its own.

        Raises:
            StateError: A state of something else or of a newer version; another plan (every field
                that differs is named with both values); numbers that are no place in the epoch.
        """
        check_format(state, format_name)
        check_plan(state.get("plan"), fingerprint)
        epoch = whole_field(state, "epoch", 0, None)
        position = whole_field(state, "position", 0, n_draws)
        lanes = whole_field(state, "lanes", 1, None)
        origin = None
        if state.get("origin") is not None:
            origin = whole_field(state, "origin", 0, position)
        return cls(epoch=epoch, position=position, lanes=lanes, origin=origin)


def check_format(state: object, format_name: str) -> None:
    """Refuse what is no state of a format, or one that a newer release wrote.

    Raises:
        StateError: Says what the state is instead.
    """
    wanted = f"expected a state of format {format_name!r}, version {_VERSION}"
    if not isinstance(state, Mapping):
        msg = f"the state is a {type(state).__name__}: {wanted}"
        raise StateError(msg)
    if not state:
        msg = f"the state is empty: {wanted}"
        raise StateError(msg)
    if state.get("format") != format_name:
        msg = f"the state is {_what_it_is(state)}: {wanted}"
        raise StateError(msg)
    version = state.get("version")
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        msg = f"the state has version {version!r}: {wanted}"
        raise StateError(msg)
    if version > _VERSION:
        msg = (
            f"the state has version {version}, newer than version {_VERSION} of this library: "
            "install the release that wrote it, or a later one"
        )
        raise StateError(msg)


def _what_it_is(state: Mapping[str, Any]) -> str:
    if isinstance(state.get("format"), str):
        return f"of format {state['format']!r}"
    for key, name in _FOREIGN.items():
        if key in state:
            return name
    keys = ", ".join(sorted(repr(key) for key in state)[:6])
    return f"of an unknown format with the keys {keys}"


def check_plan(saved: object, fingerprint: Mapping[str, Any]) -> None:
    """Refuse a state of another plan.

    Raises:
        StateError: Names every field that differs with both values.
    """
    if not isinstance(saved, Mapping):
        msg = f"the state has {saved!r} for its plan: it is not complete"
        raise StateError(msg)
    differing = [
        f"{field} was {saved.get(field, 'absent')!r} and is {fingerprint.get(field, 'absent')!r}"
        f"{_MEANINGS.get(field, '')}"
        for field in [*fingerprint, *(field for field in saved if field not in fingerprint)]
        if field not in saved
        or field not in fingerprint
        or not is_same_plan(saved[field], fingerprint[field])
    ]
    if differing:
        msg = (
            f"the state was saved over another plan: {'; '.join(differing)}. Continue with the "
            "settings and data it was saved with, or start a new epoch"
        )
        raise StateError(msg)


def is_same_plan(saved: object, now: object) -> bool:
    """Whether the plan of a state, or a field of it, is this one; 1, 1.0 and True are not equal."""
    if isinstance(now, Mapping):
        if not isinstance(saved, Mapping) or saved.keys() != now.keys():
            return False
        return all(is_same_plan(saved[name], now[name]) for name in now)
    return type(saved) is type(now) and saved == now


def whole_field(state: Mapping[str, Any], field: str, low: int = 0, high: int | None = None) -> int:
    """A whole number of a state.

    Raises:
        StateError: It is missing, of another type, or out of range.
    """
    value = state.get(field)
    if isinstance(value, bool) or not isinstance(value, int):
        msg = f"{field} of the state is {value!r}: expected a whole number"
        raise StateError(msg)
    if value < low or (high is not None and value > high):
        upto = "" if high is None else f" and at most {high}"
        msg = f"{field} of the state is {value}: expected at least {low}{upto}"
        raise StateError(msg)
    return value
