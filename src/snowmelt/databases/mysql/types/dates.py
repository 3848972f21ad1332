"""Dates and times in compiled code: days of the Gregorian calendar, and the server's way to print them."""

from __future__ import annotations

import numpy as np
from numba import njit

from snowmelt.columnar.memory import JIT

_POW10 = np.array([10**i for i in range(7)], np.int64)
_MONTH_DAYS = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], np.int64)


@njit(**JIT)
def days_of(year, month, day):  # type: ignore[no-untyped-def]
    """Days since 1970-01-01 in the proleptic Gregorian calendar."""
    if month <= 2:
        year -= 1
    era = year // 400
    year_of_era = year - era * 400
    shifted = month - 3 if month > 2 else month + 9
    day_of_year = (153 * shifted + 2) // 5 + day - 1
    return era * 146097 + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year - 719468


@njit(**JIT)
def month_days(year, month):  # type: ignore[no-untyped-def]
    """Days of a month; none of a month that the calendar has not. It has no year 0, which chunk reads make NULL too."""
    if year < 1 or month < 1 or month > 12:
        return np.int64(0)
    if month == 2 and year % 4 == 0 and (year % 100 != 0 or year % 400 == 0):
        return np.int64(29)
    return _MONTH_DAYS[month]


@njit(**JIT)
def put_digits(memory, at, value, digits):  # type: ignore[no-untyped-def]
    """`value` in exactly `digits` decimal digits."""
    for i in range(digits):
        memory[at + digits - 1 - i] = 48 + value % 10
        value //= 10
    return at + digits


@njit(**JIT)
def put_date(memory, at, year, month, day):  # type: ignore[no-untyped-def]
    at = put_digits(memory, at, year, 4)
    memory[at] = 45
    at = put_digits(memory, at + 1, month, 2)
    memory[at] = 45
    return put_digits(memory, at + 1, day, 2)


@njit(**JIT)
def put_clock(memory, at, hour, minute, second, micros, fsp):  # type: ignore[no-untyped-def]
    at = put_digits(memory, at, hour, 3 if hour > 99 else 2)
    memory[at] = 58
    at = put_digits(memory, at + 1, minute, 2)
    memory[at] = 58
    at = put_digits(memory, at + 1, second, 2)
    if fsp > 0:
        memory[at] = 46
        at = put_digits(memory, at + 1, micros // _POW10[6 - fsp], fsp)
    return at
