"""Random numbers that are a pure function of where they are used: no state, so no order of use can change them.

The mixer is SplitMix64's finaliser (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
"""

_MASK = (1 << 64) - 1


def uniform(seed: int, sequence_index: int, position: int) -> float:
    """A number in [0, 1) with 52 random bits, for the token at `position` of one of a request's sequences."""
    state = 0
    for part in (seed, sequence_index, position):
        state = _mix(state ^ (part & _MASK))
    return (state >> 12) * 2.0**-52


def _mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
