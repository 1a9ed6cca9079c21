import os

import pytest

from tests.small_loaders import in_forked_child
from torchdata_insitu.errors import ClosedError
from torchdata_insitu.pool.chunk_pool import ChunkPool
from torchdata_insitu.process_check import check_process


def test_the_process_that_made_it_may_use_it():
    check_process(object(), os.getpid())


def test_a_forked_child_is_told_what_it_used_and_what_to_do():
    pid, pool = os.getpid(), ChunkPool("1%")

    def use_in_child():
        told = f"ChunkPool was made in process {pid} and used in its forked child {os.getpid()}"
        with pytest.raises(ClosedError, match=f"{told}: start workers with the 'spawn' method"):
            pool.open_pass("p", {}, {}, print, block_chunks=1, fitting_block=int)

    assert in_forked_child(use_in_child) == ""
