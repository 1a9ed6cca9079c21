"""A text lists so many names that it can be read, and says how many there are besides."""

import pytest

from torchdata_insitu.geometry.listed_names import listed

TWENTY = "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19"


@pytest.mark.parametrize(
    "n_names, text",
    [
        (0, ""),
        (1, "0"),
        (2, "0, 1"),
        (20, TWENTY),
        (21, f"{TWENTY} and 1 more"),
        (90, f"{TWENTY} and 70 more"),
    ],
)
def test_the_first_twenty_are_listed_and_the_others_counted(n_names, text):
    assert listed(map(str, range(n_names))) == text


def test_names_stand_apart_by_any_separator():
    assert listed(["a (text)", "b (a scalar)"], separator="; ") == "a (text); b (a scalar)"
