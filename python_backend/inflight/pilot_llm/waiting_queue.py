"""The sequences that wait for a place in the running batch, best rank first."""

import heapq

from pilot_llm.sequence import LiveSequence, Place, Rank


class WaitingQueue:
    """A heap. A sequence that leaves from the middle is marked by its `place` and thrown away when it comes up."""

    def __init__(self) -> None:
        self._heap: list[tuple[Rank, LiveSequence]] = []
        self._num_waiting = 0

    def __len__(self) -> int:
        return self._num_waiting

    def push(self, sequence: LiveSequence) -> None:
        sequence.place = Place.WAITING
        self._num_waiting += 1
        heapq.heappush(self._heap, (sequence.rank, sequence))

    def first(self) -> LiveSequence | None:
        while self._heap and self._heap[0][1].place is not Place.WAITING:
            heapq.heappop(self._heap)
        return self._heap[0][1] if self._heap else None

    def pop_first(self, new_place: Place) -> None:
        """The first one goes elsewhere."""
        _, sequence = heapq.heappop(self._heap)
        sequence.place = new_place
        self._num_waiting -= 1

    def remove(self, sequence: LiveSequence) -> None:
        """`sequence`, which waits, is done."""
        sequence.place = Place.DONE
        self._num_waiting -= 1
        # Those that were removed still hold their prompts: no more of them than of those that wait.
        if len(self._heap) > 2 * self._num_waiting + 16:
            self._heap = [entry for entry in self._heap if entry[1].place is Place.WAITING]
            heapq.heapify(self._heap)
