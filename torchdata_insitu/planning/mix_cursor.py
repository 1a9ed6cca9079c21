"""Where a mix of several chains stands."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from torchdata_insitu.errors import StateError
from torchdata_insitu.planning.cursor import Cursor, check_format, check_plan, whole_field

MIX_FORMAT = "torchdata_insitu.mix"
_VERSION = 1
# Further passes of a source in one epoch are epochs of their own, which depend on nothing but the
# epoch of the mix, so that `set_epoch` and a resume find the same order as a run that came there.
PASS_EPOCHS = 10**6


@dataclass(frozen=True, slots=True)
class MixCursor:
    """A place in the order of an epoch of a mix: the same on every rank.

    Example:
        >>> cursor = MixCursor(2, 3, (Cursor(2, 8, 1), Cursor(2, 4, 1)))
        >>> state = cursor.to_state({"seed": 0}, {"a": {"n": 9}, "b": {"n": 9}}, (9, 9))
        >>> state["step"], state["cursors"]["b"]["position"]
        (3, 4)
    """

    epoch: int
    """Of the mix; every source begins it at the start of its own epoch of that number."""
    step: int
    """Batches handed out in this epoch, on each rank."""
    cursors: tuple[Cursor, ...]
    """Where each source stands, by name in alphabetical order."""
    position: int = 0
    """Draws handed out in this epoch, over all sources and ranks."""

    def passes(self, number: int) -> int:
        """Passes of a source that are over and were followed by another in this epoch."""
        return (self.cursors[number].epoch - self.epoch) // PASS_EPOCHS

    def to_state(
        self,
        plan: Mapping[str, Any],
        fingerprints: Mapping[str, Mapping[str, Any]],
        n_draws: tuple[int, ...],
    ) -> dict[str, Any]:
        """Write the cursor as plain JSON, with the plans it belongs to.

        Args:
            plan: What decides the choices.
            fingerprints: What decides the order of each source, by name in alphabetical order.
            n_draws: Draws in an epoch of each source.
        """
        return {
            "format": MIX_FORMAT,
            "version": _VERSION,
            "epoch": self.epoch,
            "step": self.step,
            "exhausted": self._exhausted(list(fingerprints), n_draws),
            "plan": dict(plan),
            "cursors": {
                name: cursor.to_state(fingerprint)
                for (name, fingerprint), cursor in zip(
                    fingerprints.items(), self.cursors, strict=True
                )
            },
        }

    def _exhausted(self, names: list[str], n_draws: tuple[int, ...]) -> list[str]:
        return [
            name
            for number, name in enumerate(names)
            if self.passes(number) or self.cursors[number].position >= n_draws[number]
        ]

    @classmethod
    def from_state(
        cls,
        state: Mapping[str, Any],
        plan: Mapping[str, Any],
        fingerprints: Mapping[str, Mapping[str, Any]],
        n_draws: tuple[int, ...],
        *,
        format_name: str = MIX_FORMAT,
        cycles: bool = False,
    ) -> Self:
        """Read a cursor back, if it was saved over this mix.

        Args:
            state: What `to_state` wrote, with its sources in any order.
            plan: Of the mix that is to continue.
            fingerprints: Of its sources.
            n_draws: Draws in an epoch of each source.
            format_name: The format the state has to be of; a loader writes its own.
            cycles: Whether sources can begin further passes in an epoch.

        Raises:
            StateError: A state of something else or of a newer version; another mix or other
                sources, with every field that differs and both values; numbers that are no place.
        """
        check_format(state, format_name)
        check_plan(state.get("plan"), plan)
        epoch, step = whole_field(state, "epoch"), whole_field(state, "step")
        saved = state.get("cursors")
        if not isinstance(saved, Mapping) or set(saved) != set(fingerprints):
            names = sorted(map(str, saved)) if isinstance(saved, Mapping) else saved
            msg = f"cursors of the state are of {names!r}, and the mix has {sorted(fingerprints)}"
            raise StateError(msg)
        cursors, wrong = [], []
        for (name, fingerprint), n in zip(fingerprints.items(), n_draws, strict=True):
            try:
                cursors.append(_read_source(saved[name], fingerprint, n, epoch, cycles=cycles))
            except StateError as error:
                wrong.append(f"of source {name!r}, {error}")
        if wrong:
            raise StateError("; ".join(wrong))
        found = cls.at(epoch, step, tuple(cursors), n_draws)
        exhausted = found._exhausted(list(fingerprints), n_draws)  # noqa: SLF001 - of this class
        if state.get("exhausted") != exhausted:
            msg = (
                f"the state says that {state.get('exhausted')!r} are exhausted, and its cursors "
                f"that {exhausted!r} are: it is damaged"
            )
            raise StateError(msg)
        return found

    @classmethod
    def at(
        cls, epoch: int, step: int, cursors: tuple[Cursor, ...], n_draws: tuple[int, ...]
    ) -> Self:
        """The place where the sources stand at these cursors."""
        position = sum(
            (cursor.epoch - epoch) // PASS_EPOCHS * n + cursor.position
            for cursor, n in zip(cursors, n_draws, strict=True)
        )
        return cls(epoch, step, cursors, position)


def _read_source(
    saved: Any, fingerprint: Mapping[str, Any], n_draws: int, epoch: int, *, cycles: bool
) -> Cursor:
    cursor = Cursor.from_state(saved, fingerprint, n_draws)
    if cursor.origin is not None:
        msg = f"the cursor stands inside a batch that begins at position {cursor.origin}"
        raise StateError(msg)
    n_passes, rest = divmod(cursor.epoch - epoch, PASS_EPOCHS)
    if rest or n_passes < 0 or (n_passes and not cycles):
        msg = f"the cursor is of epoch {cursor.epoch}, which is no pass of epoch {epoch} of the mix"
        raise StateError(msg)
    return cursor
