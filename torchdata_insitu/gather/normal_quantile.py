"""The quantile function of the normal distribution, bit for bit the same on every machine.

Only additions, multiplications, divisions and square roots are used, which IEEE 754 rounds in one
way; `np.log` and `np.sin` differ in their last bits between processors.
"""

import math

import numpy as np
from numpy.typing import NDArray

__all__ = ["normal_quantile"]

# Source: Wichura, "Algorithm AS 241: the percentage points of the normal distribution", Applied
# Statistics 37 (1988), routine PPND16: relative accuracy about 1e-16. Numerator and denominator of
# each rational function, the highest power first.
_CENTRE = (
    (
        *(2509.0809287301226727, 33430.575583588128105, 67265.770927008700853),
        *(45921.953931549871457, 13731.693765509461125, 1971.5909503065514427),
        *(133.14166789178437745, 3.387132872796366608),
    ),
    (
        *(5226.495278852854561, 28729.085735721942674, 39307.89580009271061),
        *(21213.794301586595867, 5394.1960214247511077, 687.1870074920579083),
        *(42.313330701600911252, 1.0),
    ),
)
_TAIL = (
    (
        *(7.7454501427834140764e-4, 0.0227238449892691845833, 0.24178072517745061177),
        *(1.27045825245236838258, 3.64784832476320460504, 5.7694972214606914055),
        *(4.6303378461565452959, 1.42343711074968357734),
    ),
    (
        *(1.05075007164441684324e-9, 5.475938084995344946e-4, 0.0151986665636164571966),
        *(0.14810397642748007459, 0.68976733498510000455, 1.6763848301838038494),
        *(2.05319162663775882187, 1.0),
    ),
)
_FAR_TAIL = (
    (
        *(2.01033439929228813265e-7, 2.71155556874348757815e-5, 0.0012426609473880784386),
        *(0.026532189526576123093, 0.29656057182850489123, 1.7848265399172913358),
        *(5.4637849111641143699, 6.6579046435011037772),
    ),
    (
        *(2.04426310338993978564e-15, 1.4215117583164458887e-7, 1.8463183175100546818e-5),
        *(7.868691311456132591e-4, 0.0148753612908506148525, 0.13692988092273580531),
        *(0.59983220655588793769, 1.0),
    ),
)
_CENTRE_REACH = 0.425
_TAIL_SHIFT = 1.6
_FAR_REACH = 5.0
# log((1 + s) / (1 - s)) / (2 s) in powers of s * s, which is below 0.03: 1e-17 is left out.
_LOG_SERIES = tuple(1.0 / (2 * n + 1) for n in range(10, -1, -1))


def normal_quantile(offsets: NDArray[np.float64]) -> NDArray[np.float64]:
    """Values that a standard normal variable is below with probability `offsets + 0.5`.

    Args:
        offsets: `(n,)`, inside (-0.5, 0.5): the probability minus one half, which keeps all digits
            of both tails.

    Returns:
        `(n,)`.

    Example:
        >>> normal_quantile(np.array([-0.25, 0.0, 0.475])).round(6).tolist()
        [-0.67449, 0.0, 1.959964]
    """
    square = offsets * offsets
    np.subtract(_CENTRE_REACH**2, square, out=square)
    values = _ratio(_CENTRE, square)
    values *= offsets
    outside = np.flatnonzero(square < 0)
    if len(outside):
        ends = offsets[outside]
        values[outside] = np.copysign(_tail(0.5 - np.abs(ends)), ends)
    return values


def _tail(probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    depth = np.sqrt(-_log(probabilities))
    values = _ratio(_TAIL, depth - _TAIL_SHIFT)
    far = np.flatnonzero(depth > _FAR_REACH)
    if len(far):
        values[far] = _ratio(_FAR_TAIL, depth[far] - _FAR_REACH)
    return values


def _ratio(
    function: tuple[tuple[float, ...], tuple[float, ...]], at: NDArray[np.float64]
) -> NDArray[np.float64]:
    numerator, denominator = (_polynomial(factors, at) for factors in function)
    numerator /= denominator
    return numerator


def _polynomial(factors: tuple[float, ...], at: NDArray[np.float64]) -> NDArray[np.float64]:
    value = np.full_like(at, factors[0])
    for factor in factors[1:]:
        value *= at
        value += factor
    return value


def _log(values: NDArray[np.float64]) -> NDArray[np.float64]:
    mantissas, exponents = np.frexp(values)
    small = mantissas < math.sqrt(0.5)
    mantissas[small] *= 2
    powers = exponents - small
    ratios = (mantissas - 1) / (mantissas + 1)
    series = _polynomial(_LOG_SERIES, ratios * ratios)
    series *= 2 * ratios
    series += powers * math.log(2)
    return series
