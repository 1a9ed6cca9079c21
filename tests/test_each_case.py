import inspect

import pytest

from tests.each_case import each_case


def test_a_test_is_run_for_every_case_of_each_and_takes_the_fixtures_that_are_left():
    seen = []

    @each_case("low, high", [(1, 2), (3, 4)])
    @each_case("letter", "ab")
    def check(low, high, letter, fixture):
        seen.append((low, high, letter, fixture))

    assert list(inspect.signature(check).parameters) == ["fixture"]
    check(fixture=0)
    assert seen == [(1, 2, "a", 0), (1, 2, "b", 0), (3, 4, "a", 0), (3, 4, "b", 0)]


def test_a_case_that_fails_is_named():
    @each_case("pair", [(1, 1), (1, 2)])
    @each_case("letter", "ab")
    def check(pair, letter):
        assert pair[0] == pair[1] or letter == "a"

    with pytest.raises(AssertionError) as caught:
        check()
    assert caught.value.__notes__[-2:] == ["with letter='b'", "with pair=(1, 2)"]


def test_what_raises_nothing_where_it_should_is_named():
    @each_case("number", [1, 2])
    def check(number):
        with pytest.raises(ZeroDivisionError):
            1 / (number - 1)

    with pytest.raises(pytest.fail.Exception) as caught:
        check()
    assert caught.value.__notes__ == ["with number=2"]


def test_no_cases_are_no_test():
    with pytest.raises(AssertionError, match="no cases of"):
        each_case("number", [])
