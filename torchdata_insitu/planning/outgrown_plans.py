"""The plans that data had before they grew: of the same draws, but fewer."""

from collections.abc import Mapping
from dataclasses import replace

from torchdata_insitu.planning.anchor_space import AnchorSpace
from torchdata_insitu.planning.cursor import is_same_plan
from torchdata_insitu.planning.plan import Plan


class OutgrownPlans:
    """Plans over the first draws of a space.

    An epoch that began before samples were appended is finished over the draws it began with. In
    store order these are the first ones, so that the plan of that time needs no more than their
    number; whether the rest is as it was, its fingerprint tells. It is not where so few chunks were
    drawn that arrays which are chunked unlike are now planned on another grid.

    Example:
        >>> import zarr
        >>> from torchdata_insitu.geometry.metadata import read_arrays
        >>> store = zarr.storage.MemoryStore()
        >>> t2m = zarr.create_array(store, name="t2m", shape=(10, 4), chunks=(4, 4), dtype="f4")
        >>> before = Plan(AnchorSpace(read_arrays(store)), batch_size=2).fingerprint()
        >>> t2m.resize((15, 4))
        >>> space = AnchorSpace(read_arrays(store))
        >>> outgrown = OutgrownPlans(Plan(space, batch_size=2), space)
        >>> outgrown.saved_over({"plan": before}).lengths.expand().tolist()
        [4, 4, 2]
    """

    def __init__(self, plan: Plan, space: AnchorSpace) -> None:
        """Belong to a plan and its space."""
        self._plan = plan
        self._space = space
        self._kept: Plan | None = None

    def of_first(self, n_draws: int) -> Plan:
        """The plan of the first draws; that of the last number asked for is kept."""
        # Replaced as a whole: a node may ask on another thread than the loader.
        kept = self._kept
        if kept is None or kept.n_draws != n_draws:
            kept = self._kept = replace(self._plan, space=self._space.first(n_draws))
        return kept

    def saved_over(self, state: object) -> Plan | None:
        """The outgrown plan that a state was saved over; None if there is no such plan."""
        saved = state.get("plan") if isinstance(state, Mapping) else None
        n_draws = saved.get("n") if isinstance(saved, Mapping) else None
        if type(n_draws) is not int or not 0 < n_draws < self._plan.n_draws:
            return None
        plan = self.of_first(n_draws)
        return plan if is_same_plan(saved, plan.fingerprint()) else None
