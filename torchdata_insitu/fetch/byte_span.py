"""Which bytes of an object a read asks for."""

from typing import NamedTuple


class ByteSpan(NamedTuple):
    """A stretch of an object, counted from its beginning or from its end.

    Example:
        >>> ByteSpan(4, 10).n_bytes, ByteSpan.last(6), ByteSpan.last(6).n_bytes
        (6, ByteSpan(start=-6, stop=0), 6)
    """

    start: int
    """First byte; negative from the end of the object."""
    stop: int
    """Byte after the last one; 0 for the end of the object, with a negative start."""

    @classmethod
    def last(cls, n_bytes: int) -> "ByteSpan":
        """The end of an object."""
        return cls(-n_bytes, 0)

    @property
    def n_bytes(self) -> int:
        """How many bytes there are."""
        return self.stop - self.start
