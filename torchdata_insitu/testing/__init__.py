"""What tests of programs that use the library need: small stores, and stores that count or fail."""

from torchdata_insitu.testing.check_resume import check_resume
from torchdata_insitu.testing.chunk_keys import is_chunk
from torchdata_insitu.testing.counting_store import CountingStore
from torchdata_insitu.testing.fault_server import FaultServer
from torchdata_insitu.testing.fault_store import FaultStore
from torchdata_insitu.testing.latency_store import LatencyStore
from torchdata_insitu.testing.small_stores import make_store

__all__ = [
    "CountingStore",
    "FaultServer",
    "FaultStore",
    "LatencyStore",
    "check_resume",
    "is_chunk",
    "make_store",
]
