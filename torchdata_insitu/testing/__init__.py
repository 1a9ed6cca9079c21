"""What tests of programs that use the library need: small stores, and stores that count."""

from torchdata_insitu.testing.check_resume import check_resume
from torchdata_insitu.testing.counting_store import CountingStore
from torchdata_insitu.testing.small_stores import make_store

__all__ = ["CountingStore", "check_resume", "make_store"]
