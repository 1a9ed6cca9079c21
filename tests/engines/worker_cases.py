"""Loaders in worker processes of a `DataLoader`, which begin as forks of this process.

`python -m tests.engines.worker_cases` prints what each of them raises.
"""

import torch.utils.data
import torchdata.stateful_dataloader

import torchdata_insitu as tdi
from tests.small_loaders import make_loader

KINDS = [torch.utils.data.DataLoader, torchdata.stateful_dataloader.StatefulDataLoader]


def main():
    for kind in KINDS:
        batches = kind(
            tdi.as_iterable_dataset(make_loader()),
            batch_size=None,
            num_workers=2,
            multiprocessing_context="fork",
        )
        try:
            found = list(batches)
        except tdi.errors.PlanError as error:
            print("PlanError", error)  # noqa: T201 - the answer of this program
        else:
            print("no error", len(found))  # noqa: T201 - as above


if __name__ == "__main__":
    main()
