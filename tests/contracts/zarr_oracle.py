"""What batches must hold, by plain indexing of arrays that Zarr opened."""

import numpy as np
import zarr


class ZarrOracle:
    """The arrays of a store, decoded by Zarr, sample axis first."""

    def __init__(self, store, axes):
        self.arrays = {}
        for name, axis in axes.items():
            values = zarr.open_array(store, path=name, mode="r")[...]
            self.arrays[name] = np.moveaxis(values, axis, 0)

    def view(self, names, offsets, anchors, *, stacked, windowed):
        """`(B, [offsets], [arrays], *field)`, one draw after the other."""
        draws = []
        for anchor in anchors:
            steps = []
            for offset in offsets:
                fields = [self.arrays[name][anchor + offset] for name in names]
                steps.append(np.stack(fields) if stacked else fields[0])
            draws.append(np.stack(steps) if windowed else steps[0])
        values = np.stack(draws)
        return values.astype(values.dtype.newbyteorder("="))


def check_batches(loader, oracle, n_epochs=1, after_batch=lambda: None):
    """Every batch equals the oracle at its anchors; an epoch has each possible anchor once.

    Some batches are kept and compared again at the end, the others are overwritten: neither may
    matter to what comes later.
    """
    views = loader.chain.planner.views
    offsets = [offset for view in views.values() for offset in view.offsets]
    n_samples = next(iter(views.values())).arrays[0].n_samples
    possible = range(max(0, -min(offsets)), n_samples - max(0, *offsets))
    for _ in range(n_epochs):
        found, kept = [], []
        for batch in loader:
            after_batch()
            anchors = batch["sample_index"].tolist()
            found += anchors
            for name, view in views.items():
                names = [array.path for array in view.arrays]
                expected = oracle.view(
                    names, view.offsets, anchors, stacked=view.stacked, windowed=view.windowed
                )
                check_tensor(batch[name], expected)
                if len(found) % 2:
                    kept.append((batch[name], expected))
                else:
                    batch[name].zero_()
        assert sorted(found) == list(possible)
        for tensor, expected in kept:
            check_tensor(tensor, expected)


def check_tensor(tensor, expected):
    """Equal values of equal type, in memory of its own that may be written."""
    values = tensor.numpy()
    assert values.dtype == expected.dtype
    assert tensor.is_contiguous()
    assert values.flags.writeable
    np.testing.assert_array_equal(values, expected, strict=True)
