"""Every pair of levels that can meet is in some row, and none that cannot."""

import itertools
import random

import pytest

from tests.contracts.generated.cases import N_SHORT_RUN, case, covering_rows
from tests.contracts.generated.coverage import Coverage, possible_pairs
from tests.contracts.generated.factors import FACTORS, SPACE
from tests.contracts.generated.pairwise import Space, needs, pairs_of

FREE = {"a": (1, 2, 3), "b": ("x", "y"), "c": (True, False), "d": (0, 1, 2, 3)}
RULES = [
    needs("a", [1], "b", ["x"]),
    needs("b", ["x"], "c", [True]),
    needs("d", [0, 1], "a", [2, 3]),
    needs("d", [3], "b", ["y"]),
]


def is_allowed(row, rules):
    return all(row[r.factor] not in r.levels or row[r.other] in r.other_levels for r in rules)


def all_rows(factors, rules):
    rows = (
        dict(zip(factors, levels, strict=True)) for levels in itertools.product(*factors.values())
    )
    return [row for row in rows if is_allowed(row, rules)]


def pairs(rows):
    return {pair for row in rows for pair in pairs_of(row)}


def small_system(seed):
    """Factors and rules by chance, of which some leave few rows."""
    rng = random.Random(seed)
    factors = {name: tuple(range(rng.randint(1, 4))) for name in "abcdef"[: rng.randint(2, 6)]}
    rules = []
    for _ in range(rng.randint(0, 8)):
        one, two = rng.sample(sorted(factors), 2)
        others = rng.sample(factors[two], rng.randint(1, len(factors[two])))
        rules.append(needs(one, [rng.choice(factors[one])], two, others))
    return factors, rules


@pytest.mark.parametrize("rules", [[], RULES], ids=["free", "ruled"])
def test_rows_have_exactly_the_pairs_that_any_row_can_have(rules):
    rows = Space(FREE, rules).covering_rows(0)
    assert pairs(rows) == pairs(all_rows(FREE, rules))
    assert all(is_allowed(row, rules) for row in rows)


def test_rows_have_exactly_the_possible_pairs_of_systems_made_by_chance():
    n_ruled = 0
    for seed in range(100):
        factors, rules = small_system(seed)
        possible = all_rows(factors, rules)
        n_ruled += pairs(possible) != pairs(all_rows(factors, []))
        rows = Space(factors, rules).covering_rows(seed)
        assert pairs(rows) == pairs(possible), seed
        assert all(row in possible for row in rows), seed
    assert n_ruled > 30


def test_few_rows_are_enough():
    factors = {name: tuple(range(5)) for name in "abcdefgh"}
    # 25 pairs of any two factors, and the rows of an exact design are about as many.
    assert 25 <= len(Space(factors).covering_rows(0)) <= 50


def test_equal_seeds_give_equal_rows_and_others_do_not():
    space = Space(FREE, RULES)
    assert space.covering_rows(1) == Space(FREE, RULES).covering_rows(1)
    assert len({repr(space.covering_rows(seed)) for seed in range(5)}) > 1


def test_random_rows_keep_the_rules_and_have_every_level():
    space = Space(FREE, RULES)
    rows = [space.random_row(random.Random(seed)) for seed in range(100)]
    assert all(is_allowed(row, RULES) for row in rows)
    assert {item for row in rows for item in row.items()} == {
        (name, level) for name, levels in FREE.items() for level in levels
    }


def test_levels_of_more_weight_come_more_often_and_no_pair_is_lost():
    weights = {("a", 2): 8, ("d", 3): 8}
    space = Space(FREE, RULES, weights)
    rows = space.covering_rows(0)
    assert pairs(rows) == pairs(all_rows(FREE, RULES))
    free = Space(FREE, weights=weights)
    drawn = [free.random_row(random.Random(seed))["a"] for seed in range(300)]
    assert 0.7 < drawn.count(2) / len(drawn) < 0.9


def test_levels_that_do_not_exist_are_refused():
    with pytest.raises(ValueError, match="factor 'b' has no levels"):
        Space(FREE, [needs("a", [1], "b", ["z"])])
    with pytest.raises(ValueError, match="no row at all"):
        Space({"a": (1,), "b": (2,)}, [needs("a", [1], "b", [])]).random_row(random.Random(0))


def test_allows():
    space = Space(FREE, RULES)
    for row in all_rows(FREE, []):
        assert space.allows(row) == is_allowed(row, RULES)


def test_the_short_run_has_every_pair_of_levels():
    assert len(covering_rows()) <= N_SHORT_RUN
    coverage = Coverage("")
    for number in range(N_SHORT_RUN):
        made = case(number)
        assert SPACE.allows(made.levels)
        coverage.add(made)
    title, *lines = coverage.lines()
    assert f"{len(possible_pairs())} of {len(possible_pairs())} pairs of levels (100.0%)" in title
    assert [line.split()[0] for line in lines] == list(FACTORS)
    assert not any(item.endswith(" 0") for line in lines for item in line.split(", "))
    # Nothing that should be possible fell to the rules: these pairs are few.
    every = {name: set(levels) for name, levels in FACTORS.items()}
    n_all = sum(len(every[a]) * len(every[b]) for a, b in itertools.combinations(every, 2))
    assert len(possible_pairs()) > 0.9 * n_all


def test_a_case_is_made_from_its_number_alone():
    assert case(4321) == case(4321)
    assert str(case(7)).startswith("case 7 (format=")
    assert case(7).rng("x").random() == case(7).rng("x").random() != case(8).rng("x").random()
