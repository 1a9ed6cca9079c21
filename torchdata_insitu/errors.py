"""Every exception the library raises for a reason of its own.

Each class takes one string, since torch rebuilds an exception that crosses a thread as
`exc_type(msg)`: facts go into the text. A text says what is wrong with both values, where it is
wrong, and what to do about it.

Example:
    >>> from torchdata_insitu.errors import BudgetError, InSituError
    >>> try:
    ...     raise BudgetError("block of 8 chunks needs 3.2 GB but budget_bytes is 2.0 GB")
    ... except InSituError as error:
    ...     print(error)
    block of 8 chunks needs 3.2 GB but budget_bytes is 2.0 GB
"""


class InSituError(Exception):
    """The root: `except InSituError` catches whatever the library raises on purpose.

    Example:
        >>> issubclass(PlanError, InSituError)
        True
    """


class GeometryError(InSituError, ValueError):
    """Arrays, views or metadata that cannot be trained on as asked.

    Example:
        >>> raise GeometryError("array 't2m' has 0 samples")
        Traceback (most recent call last):
        torchdata_insitu.errors.GeometryError: array 't2m' has 0 samples
    """


class PlanError(InSituError, ValueError):
    """An order of draws that cannot be made: an epoch of zero batches, an empty split.

    Example:
        >>> issubclass(PlanError, ValueError)
        True
    """


class BudgetError(InSituError, ValueError):
    """Memory asked for exceeds the budget; the text shows every term.

    Example:
        >>> issubclass(BudgetError, ValueError)
        True
    """


class StateError(InSituError, ValueError):
    """A saved state that is foreign, newer, or belongs to another plan.

    Example:
        >>> issubclass(StateError, ValueError)
        True
    """


class FetchError(InSituError):
    """Data of a chunk could not be brought into memory.

    Example:
        >>> issubclass(ReadError, FetchError) and issubclass(DecodeError, FetchError)
        True
    """


class ReadError(FetchError, OSError):
    """A store did not give the bytes of a key.

    Example:
        >>> issubclass(ReadError, OSError)
        True
    """


class DecodeError(FetchError, ValueError):
    """Stored bytes are not the chunk that the metadata promises.

    Example:
        >>> issubclass(DecodeError, ValueError)
        True
    """


class CacheError(InSituError):
    """The cache on disk cannot be used.

    Example:
        >>> issubclass(StaleCacheError, CacheError)
        True
    """


class StaleCacheError(CacheError):
    """The cache on disk was made from other content.

    Example:
        >>> issubclass(StaleCacheError, InSituError)
        True
    """


class ClosedError(InSituError, RuntimeError):
    """Something was used after it was closed, replaced, or carried over a fork.

    Example:
        >>> issubclass(ClosedError, RuntimeError)
        True
    """
