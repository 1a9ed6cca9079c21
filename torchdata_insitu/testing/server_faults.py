"""What a `FaultServer` does instead of answering well."""

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ServerFault:
    """One way to answer badly. What is not named here is as in a good answer.

    Example:
        >>> ServerFault(status=503, headers={"Retry-After": "1"}).is_error
        True
    """

    status: int | None = None
    """Status of the answer; from 400 on with a short text for a body."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Further headers."""
    body: bytes | None = None
    """Body in place of the file's."""
    content_length: int | None = None
    """Number of bytes the answer claims to have; the connection ends behind the bytes it has."""
    cut_after: int | None = None
    """Number of bytes of the body after which the connection ends."""
    stall: bool = False
    """Nothing is sent before `FaultServer.release`; then the answer is a good one."""
    reset: bool = False
    """The connection is reset instead of an answer."""
    latency_s: float = 0.0
    """Seconds that the answer takes longer."""

    @property
    def is_error(self) -> bool:
        """Whether the file is not looked at."""
        return self.status is not None and self.status >= 400  # noqa: PLR2004


@dataclass
class FaultRule:
    """Which requests a fault is for."""

    fault: ServerFault
    match: Callable[[str], bool]
    first: int
    """The first request of a key that fails, from 1."""
    times: int | None
    """How many requests of a key fail; None for all that follow."""

    def __post_init__(self) -> None:
        if self.first < 1 or (self.times is not None and self.times < 1):
            raise ValueError(
                f"first is {self.first} and times is {self.times}: requests are counted from 1, "
                "and at least one fails (times=None for all)"
            )

    def concerns(self, key: str, number: int) -> bool:
        """Whether the `number`-th request of a key, from 1, fails."""
        is_over = self.times is not None and number >= self.first + self.times
        return number >= self.first and not is_over and self.match(key)


class FaultRules:
    """The rules of a server, the one that was added last first.

    Example:
        >>> rules = FaultRules()
        >>> rules.add(FaultRule(ServerFault(status=503), {"t/c/0"}.__contains__, first=2, times=1))
        >>> [rules.next_fault("t/c/0") is not None for _ in range(3)]
        [False, True, False]
    """

    def __init__(self) -> None:
        self._rules: list[tuple[FaultRule, Counter[str]]] = []
        self._lock = threading.Lock()

    def add(self, rule: FaultRule) -> None:
        """Add a rule; its requests are counted from now on."""
        with self._lock:
            self._rules.insert(0, (rule, Counter()))

    def clear(self) -> None:
        """Remove all rules."""
        with self._lock:
            self._rules.clear()

    def next_fault(self, key: str) -> ServerFault | None:
        """Count a request of a key, and say what goes wrong with it."""
        with self._lock:
            rules = list(self._rules)
            for _, seen in rules:
                seen[key] += 1
            numbers = [seen[key] for _, seen in rules]
        for (rule, _), number in zip(rules, numbers, strict=True):
            if rule.concerns(key, number):
                return rule.fault
        return None
