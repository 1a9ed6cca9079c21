"""Process groups of torch in which this process is any rank, and there are no others."""

import contextlib

import torch.distributed
from torch.testing._internal.distributed.fake_pg import FakeStore


@contextlib.contextmanager
def process_group(rank, world_size):
    """As after `init_process_group`; nothing of it does anything."""
    torch.distributed.init_process_group(
        "fake", rank=rank, world_size=world_size, store=FakeStore()
    )
    try:
        yield
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
