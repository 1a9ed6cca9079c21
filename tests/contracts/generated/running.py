"""Running cases one after the other, and saying which failed."""

import shutil
import traceback
from collections.abc import Iterable
from pathlib import Path

from tests.contracts.generated.cases import Case, case
from tests.contracts.generated.checks import run_case
from tests.contracts.generated.coverage import Coverage


def run_cases(numbers: Iterable[int], folder: Path, coverage: Coverage) -> list[str]:
    """Run all of the cases, whichever fail.

    Returns:
        What is to be said of each that failed: its factors, the error, and how to run it alone.
    """
    failures = []
    for number in numbers:
        made = case(number)
        coverage.add(made)
        here = folder / str(number)
        here.mkdir(parents=True)
        try:
            coverage.n_read_less += not run_case(made, here)
        except Exception as error:  # noqa: BLE001 - each is reported, and the next case is run
            coverage.n_failed += 1
            failures.append(_failure(made, error))
        shutil.rmtree(here)
    return failures


def _failure(made: Case, error: Exception) -> str:
    trace = "".join(traceback.format_exception(error))
    return f"{made}\n{trace}Run it alone, and keep its store: {made.command}"
