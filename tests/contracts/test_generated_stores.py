"""Generated stores of every kind, read through loaders, equal what was written bit for bit.

`python -m tests.contracts.generated` shows what is generated, and runs one case by its number.
"""

import pytest

from tests.contracts.generated.cases import N_LONG_RUN, N_SHORT_RUN
from tests.contracts.generated.coverage import RUN
from tests.contracts.generated.running import run_cases

# Lanes of any number meet any number of ranks; what that costs is told.
pytestmark = pytest.mark.filterwarnings("ignore:.*lanes on .* ranks")

_SHORT, _LONG = 10, 50


def check(first, n_cases, folder):
    failures = run_cases(range(first, first + n_cases), folder, RUN)
    if failures:
        pytest.fail("\n\n".join(failures), pytrace=False)


@pytest.mark.parametrize("first", range(0, N_SHORT_RUN, _SHORT))
def test_every_pair_of_levels(first, tmp_path):
    check(first, _SHORT, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(N_SHORT_RUN, N_LONG_RUN, _LONG))
def test_any_levels(first, tmp_path):
    check(first, _LONG, tmp_path)
