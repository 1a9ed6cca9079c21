"""The order of a mix of chains: choices by weight over the orders of its sources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchdata_insitu.errors import PlanError
from torchdata_insitu.nodes.chunk_planner import ChunkPlanner
from torchdata_insitu.planning.cursor import Cursor
from torchdata_insitu.planning.mix_choices import MixChoices
from torchdata_insitu.planning.mix_cursor import MIX_FORMAT, PASS_EPOCHS, MixCursor
from torchdata_insitu.planning.mix_steps import MixSteps

__all__ = ["MIX_ORDER_VERSION", "MixOrder"]

MIX_ORDER_VERSION = 1
# Above, the steps of a stretch are counted together instead of one after the other.
_ONE_BY_ONE = 16


class MixOrder:
    """The order of a mix.

    Attributes:
        planners: the planner of each source, by name in alphabetical order.
        choices: which source each step is of.
        stop: the stop rule.

    Raises:
        PlanError: a bad weight, name, seed or stop rule, or sources that were given different
            ranks or world sizes.
    """

    def __init__(
        self,
        planners: Mapping[str, ChunkPlanner],
        weights: Mapping[str, float],
        *,
        seed: int,
        stop: str,
    ) -> None:
        """Check what is known; ranks that were not given are looked up later."""
        self._steps = MixSteps(MixChoices(weights, seed=seed), stop)
        self.choices = self._steps.choices
        self.stop = stop
        self.planners = {name: planners[name] for name in self.choices.names}
        self._n_draws = tuple(planner.plan.n_draws for planner in self.planners.values())
        self._kept_steps: tuple[tuple[MixCursor, tuple[int, int]], int] | None = None
        self._kept_after: tuple[tuple[MixCursor, tuple[int, int]], int, MixCursor] | None = None
        self._check_ranks({name: p.known_ranks for name, p in self.planners.items()})

    def _check_ranks(self, ranks: Mapping[str, tuple[int, int] | None]) -> None:
        known = {name: found for name, found in ranks.items() if found is not None}
        if len(set(known.values())) > 1:
            texts = (f"rank {rank} of {n} in {name!r}" for name, (rank, n) in known.items())
            msg = (
                f"the sources of the mix disagree about the rank: {', '.join(texts)}: give all of "
                "their planners the same rank and world_size, or the same mesh"
            )
            raise PlanError(msg)

    @property
    def ranks(self) -> tuple[int, int]:
        """Rank and world size, looked up at the first use and equal in all sources."""
        found = {name: planner.ranks for name, planner in self.planners.items()}
        self._check_ranks(found)
        return next(iter(found.values()))

    def use_ranks(self) -> None:
        """Let all sources keep the ranks that they have now."""
        self._check_ranks({name: p.use_ranks() for name, p in self.planners.items()})

    @property
    def plan(self) -> dict[str, Any]:
        """What decides the choices, as plain JSON."""
        return {
            "order": MIX_ORDER_VERSION,
            "seed": self.choices.seed,
            "stop": self.stop,
            "weights": dict(zip(self.choices.names, self.choices.weights, strict=True)),
        }

    def start_of(self, epoch: int, before: MixCursor | None = None) -> MixCursor:
        """Where an epoch begins that comes after a place of another."""
        befores = [None] * len(self.planners) if before is None else before.cursors
        starts = [
            planner.start_of(epoch, cursor)
            for planner, cursor in zip(self.planners.values(), befores, strict=True)
        ]
        return MixCursor(epoch, 0, tuple(starts))

    def start_again(self, cursor: MixCursor) -> MixCursor:
        """Where the epoch of a place began; the sources keep their lanes."""
        starts = [Cursor(cursor.epoch, 0, source.lanes) for source in cursor.cursors]
        return MixCursor(cursor.epoch, 0, tuple(starts))

    def next_epoch(self, cursor: MixCursor) -> MixCursor:
        """Where the epoch after that of a place begins."""
        return self.start_of(cursor.epoch + 1, cursor)

    def is_at_end(self, cursor: MixCursor) -> bool:
        """Whether no step is left of the epoch."""
        return self.source(cursor) is None

    def _left(self, cursor: MixCursor) -> list[int]:
        return [
            planner.steps_from(source)
            for planner, source in zip(self.planners.values(), cursor.cursors, strict=True)
        ]

    def _were(self, cursor: MixCursor) -> list[bool]:
        return [cursor.passes(number) > 0 for number in range(len(self.planners))]

    def source(self, cursor: MixCursor) -> int | None:
        """The number of the source that the next batch comes from; None at the end."""
        left, were = self._left(cursor), self._were(cursor)
        return self._steps.source(cursor.epoch, cursor.step, left, were)

    def begun(self, cursor: MixCursor, number: int) -> MixCursor:
        """The same place, with a source that is exhausted at the start of its next pass."""
        planner, source = list(self.planners.values())[number], cursor.cursors[number]
        if planner.steps_from(source):
            return cursor
        return self._moved(cursor, number, planner.start_of(source.epoch + PASS_EPOCHS, source), 0)

    def after_one(self, cursor: MixCursor, number: int) -> MixCursor:
        """The place after a batch of a source that has one left."""
        planner, source = list(self.planners.values())[number], cursor.cursors[number]
        return self._moved(cursor, number, planner.after(source, 1), 1)

    def _moved(self, cursor: MixCursor, number: int, source: Cursor, n_steps: int) -> MixCursor:
        cursors = (*cursor.cursors[:number], source, *cursor.cursors[number + 1 :])
        return MixCursor.at(cursor.epoch, cursor.step + n_steps, cursors, self._n_draws)

    def steps_from(self, cursor: MixCursor) -> int:
        """Batches that every rank still gets in this epoch; counted once for a place."""
        key = cursor, self.ranks
        # Replaced as a whole: the nodes may ask on another thread than the loader.
        kept = self._kept_steps
        if kept is None or kept[0] != key:
            left, were = self._left(cursor), self._were(cursor)
            n_steps = self._steps.n_steps(cursor.epoch, cursor.step, left, were)
            kept = self._kept_steps = key, n_steps
        return kept[1]

    def after(self, cursor: MixCursor, n_batches: int) -> MixCursor:
        """The place so many batches later, of those that the epoch has left."""
        key = cursor, self.ranks
        kept = self._kept_after
        done, place = 0, cursor
        if kept is not None and kept[0] == key and kept[1] <= n_batches:
            _, done, place = kept
        if n_batches - done > _ONE_BY_ONE:
            place = self._after_many(place, n_batches - done)
        else:
            for _ in range(n_batches - done):
                number = self.source(place)
                if number is None:
                    break
                place = self.after_one(self.begun(place, number), number)
        self._kept_after = key, n_batches, place
        return place

    def _after_many(self, cursor: MixCursor, n_batches: int) -> MixCursor:
        n_batches = min(n_batches, self.steps_from(cursor))
        counts = self._steps.counts(cursor.epoch, cursor.step, n_batches, self._left(cursor))
        sources = [
            list(self._passes(planner, source, count))[-1][1]
            for planner, source, count in zip(
                self.planners.values(), cursor.cursors, counts, strict=True
            )
        ]
        return MixCursor.at(cursor.epoch, cursor.step + n_batches, tuple(sources), self._n_draws)

    def _passes(
        self, planner: ChunkPlanner, cursor: Cursor, n_batches: int
    ) -> list[tuple[Cursor, Cursor, int]]:
        """The passes of a source that give its next batches: first, last place, and how many."""
        found = []
        while True:
            n = min(n_batches, planner.steps_from(cursor))
            after = planner.after(cursor, n) if n else cursor
            found.append((cursor, after, n))
            n_batches -= n
            if not n_batches:
                return found
            cursor = planner.start_of(cursor.epoch + PASS_EPOCHS, cursor)

    def reads_from(self, cursor: MixCursor) -> dict[str, int]:
        """Stored chunks that this rank reads to the end of the epoch, by `source/array`.

        Of a source that the epoch leaves in the middle of a pass, what its batches need; more may
        be read ahead of them.
        """
        n_steps = self.steps_from(cursor)
        counts = self._steps.counts(cursor.epoch, cursor.step, n_steps, self._left(cursor))
        reads = {}
        for (name, planner), source, count in zip(
            self.planners.items(), cursor.cursors, counts, strict=True
        ):
            total = dict.fromkeys(planner.space.array_names, 0)
            for start, after, n in self._passes(planner, source, count):
                n_batches = None if planner.is_at_end(after) else n
                for array, n_chunks in planner.reads_from(start, n_batches).items():
                    total[array] += n_chunks
            reads.update({f"{name}/{array}": n_chunks for array, n_chunks in total.items()})
        return reads

    def read_cursor(self, state: Any, *, format_name: str = MIX_FORMAT) -> MixCursor:
        """Check a state against the mix; the order of the sources in it is no difference.

        Raises:
            StateError: foreign, newer, or of another mix or other sources, with every field that
                differs and both values.
        """
        return MixCursor.from_state(
            state,
            self.plan,
            self._fingerprints(),
            self._n_draws,
            format_name=format_name,
            cycles=self.stop == "cycle",
        )

    def write_cursor(self, cursor: MixCursor) -> dict[str, Any]:
        """The state that a place stands for; it shares nothing with the mix."""
        return cursor.to_state(self.plan, self._fingerprints(), self._n_draws)

    def _fingerprints(self) -> dict[str, dict[str, Any]]:
        return {name: planner.plan.fingerprint() for name, planner in self.planners.items()}

    def __getstate__(self) -> dict[str, Any]:
        """Without what is only kept for speed."""
        return {**self.__dict__, "_kept_steps": None, "_kept_after": None}
