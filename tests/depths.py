"""Properties that are looked at with a few cases in each run, and with many where there is time."""

import pytest
from hypothesis import HealthCheck, given, settings

_SLOW_RUNS = 5


def examples(n, *strategies):
    """Turn a check of a drawn case into a test of `n` cases, and slow ones of ten times as many.

    Args:
        n: Cases in a normal run.
        strategies: What the arguments of the check are drawn from.
    """

    def decorate(check):
        # Several runs, each with cases of its own, since no test may take minutes.
        depths = [
            pytest.param(n, id="few"),
            *(
                pytest.param(2 * n, id=f"many-{run}", marks=pytest.mark.slow)
                for run in range(_SLOW_RUNS)
            ),
        ]

        @pytest.mark.parametrize("n_examples", depths)
        def test(n_examples):
            # The first draw of a process looks for constants in the source of every module, which
            # takes a second or two on a busy machine and says nothing about the strategies.
            chosen = settings(max_examples=n_examples, suppress_health_check=[HealthCheck.too_slow])
            chosen(given(*strategies)(check))()

        # Not `functools.wraps`: pytest would take the arguments of the check for fixtures.
        test.__name__, test.__doc__, test.__module__ = (
            check.__name__,
            check.__doc__,
            check.__module__,
        )
        return test

    return decorate
