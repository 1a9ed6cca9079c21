"""Objects belong to the process that made them: threads and native runtimes outlive no fork."""

import os

from torchdata_insitu.errors import ClosedError

__all__ = ["check_process"]


def check_process(owner: object, pid: int) -> None:
    """Refuse to go on in a forked child.

    Args:
        owner: what is used.
        pid: the process that made it.

    Raises:
        ClosedError: this process is another.

    Example:
        >>> check_process("text", os.getpid())
        >>> check_process("text", 0)
        Traceback (most recent call last):
        ...
        torchdata_insitu.errors.ClosedError: str was made in process 0 and used in its forked ...
    """
    if os.getpid() != pid:
        msg = (
            f"{type(owner).__name__} was made in process {pid} and used in its forked child "
            f"{os.getpid()}: start workers with the 'spawn' method, or make loader and pool in "
            "the child"
        )
        raise ClosedError(msg)
