"""Who computes which prefix at this moment, and who waits for it.

A running sequence announces the keys of the full blocks that its coming prompt chunks will fill. A waiting sequence
that would need such a block next is parked, rather than computing it a second time:

    A, running    [done] [done] [announced] [announced] [announced]
    B, waiting    [found][found][announced] [announced] [own ...]
                                              ^ B is parked on the last block that it has in common with A

It is let go when A has that block scheduled, and when A ends in any way, so nobody waits for somebody who does not
run. Keys may collide: then a sequence waits for a stranger, once, and computes its blocks itself.
"""

from collections.abc import Iterable

from pilot_llm.block_keys import BlockKeys
from pilot_llm.sequence import LiveSequence


class PrefixesInProgress:
    """Table of announced keys. One thread, the engine's, uses it."""

    def __init__(self) -> None:
        self._announcer: dict[bytes, LiveSequence] = {}
        self._announced: dict[LiveSequence, list[bytes]] = {}
        self._parked: dict[bytes, dict[LiveSequence, None]] = {}
        self._key_of_parked: dict[LiveSequence, bytes] = {}

    @property
    def num_parked(self) -> int:
        return len(self._key_of_parked)

    def parked(self) -> Iterable[LiveSequence]:
        return self._key_of_parked.keys()

    def announce(self, sequence: LiveSequence, keys: Iterable[bytes]) -> None:
        """`sequence`, which runs, is going to compute the blocks with these keys, in this order."""
        own = [key for key in keys if self._announcer.setdefault(key, sequence) is sequence]
        if own:
            own.reverse()  # the next one to be computed is popped from the end
            self._announced[sequence] = own

    def key_to_wait_for(self, keys: BlockKeys, first: int, end: int) -> bytes | None:
        """The last of blocks [first, end) that one other sequence is computing, reached without a gap."""
        announcer, awaited = None, None
        for index in range(first, end):
            key = keys.key(index)
            other = self._announcer.get(key)
            if other is None or (announcer is not None and other is not announcer):
                break
            announcer, awaited = other, key
        return awaited

    def park(self, sequence: LiveSequence, key: bytes) -> None:
        self._parked.setdefault(key, {})[sequence] = None
        self._key_of_parked[sequence] = key

    def unpark(self, sequence: LiveSequence) -> None:
        """`sequence` does not want to wait any more."""
        key = self._key_of_parked.pop(sequence, None)
        if key is None:
            return
        waiters = self._parked[key]
        del waiters[sequence]
        if not waiters:
            del self._parked[key]

    def computed(self, sequence: LiveSequence, key: bytes) -> list[LiveSequence]:
        """`sequence` has its next block scheduled. Returns those who waited for it."""
        own = self._announced.get(sequence)
        if not own or own[-1] != key:
            return []
        own.pop()
        if not own:
            del self._announced[sequence]
        return self._let_go(sequence, [key])

    def withdraw(self, sequence: LiveSequence) -> list[LiveSequence]:
        """`sequence` will not compute what it announced. Returns those who waited for it."""
        return self._let_go(sequence, self._announced.pop(sequence, ()))

    def _let_go(self, sequence: LiveSequence, keys: Iterable[bytes]) -> list[LiveSequence]:
        freed: list[LiveSequence] = []
        for key in keys:
            if self._announcer.get(key) is sequence:
                del self._announcer[key]
            waiters = self._parked.pop(key, {})
            for waiter in waiters:
                del self._key_of_parked[waiter]
            freed.extend(waiters)
        return freed
