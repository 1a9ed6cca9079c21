"""Calls in processes of their own, which have run nothing before."""

import multiprocessing
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

_TIMEOUT_S = 900.0
_END_S = 30.0


def call_in_fresh_process[T](function: Callable[..., T], *arguments: Any) -> T:
    """Call a function of a module, with arguments that can be pickled, in a new interpreter.

    Raises:
        ChildProcessError: It raised, or ended its process.
        TimeoutError: It took more than 15 minutes and was killed.
    """
    return _call(multiprocessing.get_context("spawn"), function, arguments)


class ForkServer:
    """Forks a process for each call from one that has imported modules and does nothing else.

    Such a process is as a new one that has done its imports, which take longer than an epoch.

    Args:
        modules: What is imported. There is one server in a process, and the first call starts it.
    """

    def __init__(self, modules: Sequence[str]) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(modules))

    def call[T](self, function: Callable[..., T], *arguments: Any) -> T:
        """As `call_in_fresh_process`."""
        return _call(self._context, function, arguments)


def _call[T](context: Any, function: Callable[..., T], arguments: tuple[Any, ...]) -> T:
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, function, arguments))
    process.start()
    sender.close()
    try:
        if not receiver.poll(_TIMEOUT_S):
            raise TimeoutError(f"{function.__name__}{arguments} took more than {_TIMEOUT_S:.0f} s")
        result, error = receiver.recv()
    except EOFError:
        process.join(_END_S)
        msg = f"{function.__name__}{arguments} ended its process: exit code {process.exitcode}"
        raise ChildProcessError(msg) from None
    finally:
        process.join(_END_S)
        if process.is_alive():
            process.kill()
            process.join()
        receiver.close()
    if error is not None:
        raise ChildProcessError(f"{function.__name__}{arguments}:\n{error}")
    return result  # type: ignore[no-any-return]


def _send(sender: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        answer = (function(*arguments), None)
    except Exception:  # noqa: BLE001 - raised where it was called from
        answer = (None, traceback.format_exc())
    sender.send(answer)
    sender.close()
