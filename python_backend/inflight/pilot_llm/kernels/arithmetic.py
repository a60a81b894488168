"""Scalar functions that LLVM turns into vector code inside a loop: no call, no branch.

All kernels divide as numpy does (`error_model`): a sequence that is not finite gets NaN, and no other is disturbed.
"""

import numpy as np
from numba import njit

from pilot_llm.kernels.machine_code import bits_of, float_from_bits, fma, larger

_F = np.float32
# Adding and taking away 1.5 * 2^23 rounds a float32 below 2^22 to the nearest whole number, ties to even.
_ROUNDER = _F(12582912.0)
_LOG2_E = _F(1.4426950408889634)
# log(2) in two parts: the first has so few bits that whole multiples of it are exact.
_LN2_HIGH, _LN2_LOW = _F(0.693359375), _F(-2.12194440e-4)
# exp(f) = 1 + f + f^2 * p(f) on |f| <= log(2) / 2, to the last bit or two of float32. Source: Cephes, expf.
_P5, _P4, _P3 = _F(1.9875691500e-4), _F(1.3981999507e-3), _F(8.3334519073e-3)
_P2, _P1, _P0 = _F(4.1665795894e-2), _F(1.6666665459e-1), _F(5.0000001201e-1)
_WITHOUT_SIGN = np.int32(0x7FFFFFFF)
_SMALLEST, _LARGEST = _F(-87.0), _F(88.0)


@njit(inline="always")
def even_part(count, most):
    """How large the parts of `count` are, as few as there must be if none is above `most`, and about equal."""
    num_parts = (count + most - 1) // most
    return (count + num_parts - 1) // num_parts


@njit(inline="always", error_model="numpy")
def rounded(x):
    return (x + _ROUNDER) - _ROUNDER


@njit(inline="always", error_model="numpy")
def exp(x):
    """e^x for float32 up to 88; 0 below -87, since a denormal number costs a hundred normal ones."""
    bounded = min(max(x, _SMALLEST), _LARGEST)
    whole = fma(bounded, _LOG2_E, _ROUNDER) - _ROUNDER
    f = fma(whole, -_LN2_LOW, fma(whole, -_LN2_HIGH, bounded))
    p = fma(fma(fma(fma(fma(_P5, f, _P4), f, _P3), f, _P2), f, _P1), f, _P0)
    power = float_from_bits((np.int32(whole) + np.int32(127)) << np.int32(23))
    return (fma(p * f, f, f) + _F(1)) * power if x > _SMALLEST else _F(0)


@njit(inline="always", error_model="numpy")
def silu(x):
    return x / (_F(1) + exp(-x))


@njit(fastmath={"reassoc", "contract", "nsz"})
def sum_of_squares(row):
    """The order of this sum depends on the row's length alone."""
    total = _F(0)
    for index in range(len(row)):
        total += row[index] * row[index]
    return total


@njit
def largest(row):
    most = row[0]
    for index in range(1, len(row)):
        most = larger(most, row[index])
    return most


@njit
def largest_magnitude(row):
    """NaN or infinite, if one of the row is: without its sign, a float32 is the larger the larger its bits are."""
    most = np.int32(0)
    for index in range(len(row)):
        most = max(most, bits_of(row[index]) & _WITHOUT_SIGN)
    return float_from_bits(most)


@njit(inline="always", error_model="numpy")
def quantized_by(most, steps):
    """The scale of numbers up to `most` in whole ones up to `steps`, and the factor that makes them such. The scale is
    NaN unless `most` is finite: it keeps what whole numbers cannot say.
    """
    return most / steps + _F(0) * most, steps / most if most > _F(0) else _F(0)
