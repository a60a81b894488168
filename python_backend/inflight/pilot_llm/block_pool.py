"""Hands out the blocks of the paged KV cache and lets sequences share equal prefixes.

Every block is in exactly one state:

                 allocate                     publish
      free  ------------------>  held  ------------------->  held, published
       ^                          |                            |          ^
       |  release of the last     |        release of the last |          | allocate as part
       |  holder, or forget       |        holder              v          | of a found prefix
       +--------------------------+                         cached -------+
       |                                                       |
       +-------------------------------------------------------+  evicted, longest idle first: it becomes held by
                                                                  another; or forgotten

    free     nobody holds it and its content is worthless
    held     `holders[block]` sequences read it; published means that its key finds it
    cached   nobody holds it, but its key still finds it

The pool does bookkeeping only; it never touches K and V. One thread, the engine's, uses it.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from pilot_llm.block_keys import BlockKeys, Identity
from pilot_llm.errors import LlmError, OutOfBlocksError


@dataclass(frozen=True, slots=True)
class _Published:
    """What proves that a block holds what its key promises."""

    key: bytes
    tokens: tuple[int, ...]
    parent: Identity
    identity: int


class BlockPool:
    """Bookkeeping for `num_blocks` equal blocks. Every operation is O(1) per block that it is given."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._holders = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))  # a stack: the block used last is warm
        self._cached: OrderedDict[int, None] = OrderedDict()  # longest idle first
        self._published: dict[int, _Published] = {}
        self._block_by_key: dict[bytes, int] = {}
        self._next_identity = 0

    @property
    def num_available(self) -> int:
        """Blocks that can be allocated now: free or evictable."""
        return len(self._free) + len(self._cached)

    @property
    def num_held(self) -> int:
        return self.num_blocks - self.num_available

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    def find_prefix(self, keys: BlockKeys, max_blocks: int) -> list[int]:
        """Blocks that hold the longest known prefix, at most `max_blocks`, in token order. Changes no state of a block.

        Leave at least one token out of `max_blocks`: the model must run on a token to give logits.
        """
        found: list[int] = []
        keys.identities.clear()
        while len(found) < max_blocks:
            block = self._proven(keys, len(found))
            if block is None:
                break
            keys.identities.append(self._published[block].identity)
            found.append(block)
        return found

    def num_available_beside(self, blocks: Sequence[int]) -> int:
        """Blocks that can be allocated in addition to `blocks`: a cached block that is reused cannot be evicted too."""
        return self.num_available - sum(not self._holders[block] for block in blocks)

    def allocate(self, num_new: int, reuse: Sequence[int] = ()) -> list[int]:
        """Hold the blocks of a found prefix, and `num_new` others.

        Returns:
            The blocks of `reuse` followed by the new ones.

        Raises:
            OutOfBlocksError: too few blocks are available. The pool is unchanged.
        """
        available = self.num_available_beside(reuse)
        if num_new > available:
            raise OutOfBlocksError(f"{num_new} more KV blocks needed, {available} available")
        for block in reuse:
            if not self._holders[block]:
                del self._cached[block]
            self._holders[block] += 1
        return [*reuse, *(self._take() for _ in range(num_new))]

    def publish(self, keys: BlockKeys, index: int, block: int) -> None:
        """Make full block `index` of a sequence, which holds it as `block`, findable by its key.

        Blocks are published in token order. If another block with the same content is findable already, that one
        stays: `block` is a duplicate, worthless once it is released.
        """
        existing = self._proven(keys, index)
        if existing is not None:
            keys.identities.append(self._published[existing].identity)
            return
        key = keys.key(index)
        other = self._block_by_key.get(key)
        if other is not None:  # a collision, or the child of a prefix that was evicted: no walk reaches it any more
            self.forget(other)
        identity = self._next_identity
        self._next_identity += 1
        self._published[block] = _Published(key, keys.tokens(index), keys.parent(index), identity)
        self._block_by_key[key] = block
        keys.identities.append(identity)

    def forget(self, block: int) -> None:
        """Its content is not to be shared any more. Those who hold it keep it."""
        published = self._published.pop(block, None)
        if published is None:
            return
        del self._block_by_key[published.key]
        if not self._holders[block]:
            del self._cached[block]
            self._free.append(block)

    def release(self, blocks: Sequence[int]) -> None:
        """Give up one sequence's hold on its blocks, given in token order."""
        # Last block first, so that it is evicted first: a prefix that has lost its head can never be found again.
        for block in reversed(blocks):
            self._holders[block] -= 1
            if self._holders[block]:
                continue
            if block in self._published:
                self._cached[block] = None
            else:
                self._free.append(block)

    def forget_all(self) -> None:
        """Nothing that is in the pool now will be found again."""
        for block in list(self._published):
            self.forget(block)

    def check_invariants(self) -> None:
        """Compare the tables with each other, in O(num_blocks); for tests and when a defect is suspected.

        Raises:
            LlmError: a block in no state or in two, a negative count, or tables that contradict.
        """
        free, cached = set(self._free), set(self._cached)
        held = {block for block, holders in enumerate(self._holders) if holders > 0}
        problems = [
            ("a block is free twice", len(free) != len(self._free)),
            ("free and cached overlap", free & cached),
            ("free and held overlap", free & held),
            ("cached and held overlap", cached & held),
            ("a block is in no state", len(free) + len(cached) + len(held) != self.num_blocks),
            ("a count is negative", min(self._holders, default=0) < 0),
            ("a free block is published", free & self._published.keys()),
            ("a cached block is not published", cached - self._published.keys()),
            ("keys and blocks disagree", {b: p.key for b, p in self._published.items()} != self._keys_by_block()),
        ]
        broken = [name for name, found in problems if found]
        if broken:
            raise LlmError(f"KV block pool: {'; '.join(broken)}")

    def holders(self) -> dict[int, int]:
        """How many sequences hold each held block."""
        return {block: holders for block, holders in enumerate(self._holders) if holders}

    def _keys_by_block(self) -> dict[int, bytes]:
        return {block: key for key, block in self._block_by_key.items()}

    def _proven(self, keys: BlockKeys, index: int) -> int | None:
        block = self._block_by_key.get(keys.key(index))
        if block is None:
            return None
        published = self._published[block]
        same = published.parent == keys.parent(index) and published.tokens == keys.tokens(index)
        return block if same else None

    def _take(self) -> int:
        if self._free:
            block = self._free.pop()
        else:
            block, _ = self._cached.popitem(last=False)
            del self._block_by_key[self._published.pop(block).key]
        self._holders[block] = 1
        return block
