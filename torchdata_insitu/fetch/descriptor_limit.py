"""How many requests the file descriptors of the process are enough for."""

import warnings

try:
    import resource
except ImportError:  # pragma: no cover - there is no such limit on Windows
    resource = None  # type: ignore[assignment]


def within_descriptors(max_inflight: int) -> int:
    """`max_inflight`, at most a quarter of the files that the process may open.

    Every request has a file or a socket. Warns where it lowers.
    """
    if resource is None:
        return max_inflight
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return max_inflight
    most = max(1, soft // 4)
    if max_inflight <= most:
        return max_inflight
    msg = (
        f"max_inflight is lowered from {max_inflight} to {most}, a quarter of the {soft} files "
        "that this process may open: raise that limit with 'ulimit -n'"
    )
    warnings.warn(msg, stacklevel=2)
    return most
