"""Rows over factors in which every two levels that can meet do meet, made greedily from a seed.

After Cohen, Dalal, Fredman and Patton, "The AETG system", IEEE Trans. Softw. Eng. 23 (1997): begin
a row with a pair that no row has, give each other factor the level that adds most pairs, and keep
the best of several such rows. Levels and pairs are bits of integers, so that a row costs little.
"""

import random
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

type Level = Hashable
type Row = dict[str, Level]

_CANDIDATES = 8


@dataclass(frozen=True)
class Needs:
    """These levels of one factor go with those levels of another only."""

    factor: str
    levels: frozenset[Level]
    other: str
    other_levels: frozenset[Level]


def needs(factor: str, levels: Iterable[Level], other: str, other_levels: Iterable[Level]) -> Needs:
    return Needs(factor, frozenset(levels), other, frozenset(other_levels))


class Space:
    """Factors, their levels, and which of these may meet.

    Args:
        factors: Levels by factor.
        rules: Which levels may meet.
        weights: How many times as often as other levels of its factor a level comes, where it does
            not matter to the pairs. It is 1 for those that are not named.
    """

    def __init__(
        self,
        factors: Mapping[str, Sequence[Level]],
        rules: Sequence[Needs] = (),
        weights: Mapping[tuple[str, Level], float] | None = None,
    ) -> None:
        self.factors = {name: tuple(levels) for name, levels in factors.items()}
        self._names = list(self.factors)
        self._bits = [
            (factor, level)
            for factor, name in enumerate(self._names)
            for level in self.factors[name]
        ]
        self._number = {
            (self._names[factor], level): bit for bit, (factor, level) in enumerate(self._bits)
        }
        named = {self._number[item]: weight for item, weight in (weights or {}).items()}
        self._weights = [named.get(bit, 1.0) for bit in range(len(self._bits))]
        self._of_factor = [
            sum(1 << bit for bit, (owner, _) in enumerate(self._bits) if owner == factor)
            for factor in range(len(self._names))
        ]
        everything = (1 << len(self._bits)) - 1
        self._fits = [everything & ~self._of_factor[factor] for factor, _ in self._bits]
        for rule in rules:
            self._add(rule)
        while self._exclude_implied():
            pass

    def _exclude_implied(self) -> bool:
        """Part the levels that leave none of a third factor; whether there were such.

        Without it a row could be found impossible at its last factor, whatever the others are.
        """
        parted = [
            (one, two)
            for one, fits in enumerate(self._fits)
            for two in _ones(fits)
            if one < two and not self._leaves_all(one, two)
        ]
        for one, two in parted:
            self._part(one, two)
        return bool(parted)

    def _leaves_all(self, one: int, two: int) -> bool:
        both = self._fits[one] & self._fits[two]
        own = {self._bits[one][0], self._bits[two][0]}
        return all(both & mask for factor, mask in enumerate(self._of_factor) if factor not in own)

    def _part(self, one: int, two: int) -> None:
        self._fits[one] &= ~(1 << two)
        self._fits[two] &= ~(1 << one)

    def _add(self, rule: Needs) -> None:
        for name, levels in (
            (rule.factor, rule.levels),
            (rule.other, rule.other_levels),
        ):
            unknown = levels - set(self.factors[name])
            if unknown:
                raise ValueError(f"factor {name!r} has no levels {sorted(map(repr, unknown))}")
        for level in rule.levels:
            for other in set(self.factors[rule.other]) - rule.other_levels:
                self._part(self._number[rule.factor, level], self._number[rule.other, other])

    def allows(self, row: Row) -> bool:
        """Whether no two levels of a row exclude each other."""
        bits = self._bits_of(row)
        return all(self._fits[one] >> two & 1 for one in bits for two in bits if one != two)

    def random_row(self, rng: random.Random) -> Row:
        """Any row, the levels of a factor that still fit as likely as their weights say."""
        row = self._completed([], [0] * len(self._bits), rng)
        if row is None:
            raise ValueError("the rules leave no row at all")
        return self._row(row)

    def covering_rows(self, seed: object) -> list[Row]:
        """Rows that have every pair of levels that any row can have."""
        rng = random.Random(repr(seed))
        open_pairs = list(self._fits)
        rows = []
        while (start := self._first_open(open_pairs, rng)) is not None:
            made = [self._completed(start, open_pairs, rng) for _ in range(_CANDIDATES)]
            found = [bits for bits in made if bits is not None]
            if not found:
                # Each level of some third factor excludes one of the two.
                one, two = start
                open_pairs[one] &= ~(1 << two)
                open_pairs[two] &= ~(1 << one)
                continue
            best = max(found, key=lambda bits: _n_open(bits, open_pairs))
            mask = _mask(best)
            for bit in best:
                open_pairs[bit] &= ~mask
            rows.append(self._row(best))
        return rows

    def _first_open(self, open_pairs: list[int], rng: random.Random) -> list[int] | None:
        """An open pair of a level that has most of them."""
        most = max(pairs.bit_count() for pairs in open_pairs)
        if most == 0:
            return None
        one = rng.choice([bit for bit, pairs in enumerate(open_pairs) if pairs.bit_count() == most])
        two = rng.choice(_ones(open_pairs[one]))
        return [one, two]

    def _completed(
        self, start: list[int], open_pairs: list[int], rng: random.Random
    ) -> list[int] | None:
        """A row with these levels, greedy for open pairs; None if there is none."""
        order = list(range(len(self._names)))
        rng.shuffle(order)
        taken = {self._bits[bit][0] for bit in start}
        allowed = (1 << len(self._bits)) - 1
        for bit in start:
            allowed &= self._fits[bit] | 1 << bit
        left = [factor for factor in order if factor not in taken]
        if not all(allowed & self._of_factor[factor] for factor in left):
            return None
        return self._filled(list(start), left, allowed, open_pairs, rng)

    def _filled(
        self,
        chosen: list[int],
        left: list[int],
        allowed: int,
        open_pairs: list[int],
        rng: random.Random,
    ) -> list[int] | None:
        if not left:
            return chosen
        factor, rest = left[0], left[1:]
        mask = _mask(chosen)
        options = _ones(allowed & self._of_factor[factor])
        # The first of them by such numbers is each in proportion to its weight.
        chance = {bit: rng.random() ** (1 / self._weights[bit]) for bit in options}
        options.sort(key=lambda bit: ((open_pairs[bit] & mask).bit_count(), chance[bit]))
        options.reverse()
        for bit in options:
            narrowed = allowed & self._fits[bit]
            if all(narrowed & self._of_factor[other] for other in rest):
                row = self._filled([*chosen, bit], rest, narrowed, open_pairs, rng)
                if row is not None:
                    return row
        return None

    def _bits_of(self, row: Row) -> list[int]:
        return [self._number[name, level] for name, level in row.items()]

    def _row(self, bits: list[int]) -> Row:
        levels = {self._names[factor]: level for factor, level in (self._bits[b] for b in bits)}
        return {name: levels[name] for name in self._names}


def pairs_of(row: Row) -> set[tuple[tuple[str, Level], tuple[str, Level]]]:
    """The pairs of levels that meet in a row."""
    items = list(row.items())
    return {(one, two) for number, one in enumerate(items) for two in items[number + 1 :]}


def _mask(bits: Iterable[int]) -> int:
    return sum(1 << bit for bit in bits)


def _ones(mask: int) -> list[int]:
    bits = []
    while mask:
        lowest = mask & -mask
        bits.append(lowest.bit_length() - 1)
        mask ^= lowest
    return bits


def _n_open(bits: list[int], open_pairs: list[int]) -> int:
    mask = _mask(bits)
    return sum((open_pairs[bit] & mask).bit_count() for bit in bits)
