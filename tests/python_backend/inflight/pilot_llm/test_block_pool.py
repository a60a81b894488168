"""The block pool against its promises, one by one, and against a small independent model in random walks."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, precondition, rule

from pilot_llm.block_keys import BlockKeys, HashBlock, Namespace, sha256_block
from pilot_llm.block_pool import BlockPool
from pilot_llm.errors import LlmError, OutOfBlocksError

BLOCK = 4
PROMPT = list(range(12))
NOBODY = Namespace()


def keys_of(tokens: list[int], namespace: Namespace = NOBODY, hash_block: HashBlock = sha256_block) -> BlockKeys:
    return BlockKeys(tokens, BLOCK, namespace, hash_block)


def constant_hash(parent_key: bytes, token_bytes: bytes) -> bytes:
    return b"always the same"


def compute(pool: BlockPool, tokens: list[int], keys: BlockKeys | None = None) -> list[int]:
    """As a request does: reuse, allocate, publish all full blocks."""
    keys = keys or keys_of(tokens)
    found = pool.find_prefix(keys, len(tokens) // BLOCK)
    blocks = pool.allocate(-(-len(tokens) // BLOCK) - len(found), found)
    for index in range(len(found), len(tokens) // BLOCK):
        pool.publish(keys, index, blocks[index])
    return blocks


def finished_request(pool: BlockPool, tokens: list[int], keys: BlockKeys | None = None) -> list[int]:
    blocks = compute(pool, tokens, keys)
    pool.release(blocks)
    return blocks


def found(pool: BlockPool, tokens: list[int], namespace: Namespace = NOBODY) -> list[int]:
    return pool.find_prefix(keys_of(tokens, namespace), len(tokens) // BLOCK)


def test_equal_prefix_is_found_until_the_first_difference() -> None:
    pool = BlockPool(8)
    blocks = finished_request(pool, PROMPT)
    assert found(pool, PROMPT) == blocks
    assert found(pool, [*PROMPT[:8], 99, 9, 10, 11]) == blocks[:2]
    assert found(pool, [99, *PROMPT[1:]]) == []


def test_equal_block_behind_another_prefix_is_not_found() -> None:
    pool = BlockPool(8)
    finished_request(pool, PROMPT)
    assert found(pool, PROMPT[4:8]) == []


def test_partial_block_is_never_shared() -> None:
    pool = BlockPool(8)
    finished_request(pool, PROMPT[:6])
    assert len(found(pool, PROMPT)) == 1


def test_two_requests_hold_one_prefix_and_the_last_release_makes_it_cached() -> None:
    pool = BlockPool(8)
    first = compute(pool, PROMPT)
    second = compute(pool, PROMPT)
    assert first == second
    pool.release(first)
    assert (pool.num_held, pool.num_cached) == (3, 0)
    pool.release(second)
    assert (pool.num_held, pool.num_cached, pool.num_available) == (0, 3, 8)


def test_longest_idle_prefix_is_evicted_first_and_from_its_tail() -> None:
    pool = BlockPool(5)
    old = finished_request(pool, PROMPT)
    finished_request(pool, [50] * 8)
    assert pool.allocate(1) == [old[2]]
    assert found(pool, PROMPT) == old[:2]


def test_reused_prefix_is_young_again() -> None:
    pool = BlockPool(4)
    first = finished_request(pool, PROMPT[:8])
    second = finished_request(pool, [50] * 8)
    finished_request(pool, PROMPT[:8])
    assert pool.allocate(1) == [second[1]]
    assert found(pool, PROMPT[:8]) == first


def test_held_block_is_never_evicted() -> None:
    pool = BlockPool(4)
    held = compute(pool, PROMPT)
    with pytest.raises(OutOfBlocksError, match="2 more KV blocks needed, 1 available"):
        pool.allocate(2)
    assert found(pool, PROMPT) == held


def test_failed_allocation_changes_nothing() -> None:
    pool = BlockPool(4)
    old = finished_request(pool, PROMPT)
    prefix = pool.find_prefix(keys_of(PROMPT), 2)
    with pytest.raises(OutOfBlocksError, match="3 more KV blocks needed, 2 available"):
        pool.allocate(3, prefix)
    assert (pool.num_available, pool.num_held) == (4, 0)
    assert found(pool, PROMPT) == old
    pool.check_invariants()


@pytest.mark.parametrize(
    ("namespace", "other"),
    [
        (Namespace("a"), Namespace("b")),
        (Namespace("a"), Namespace()),
        (Namespace(adapter="a"), Namespace(cache_salt="a")),
        (Namespace(adapter="a"), Namespace()),
        (Namespace("None"), Namespace(None)),
        (Namespace("a', adapter='b"), Namespace("a", "b")),
    ],
)
@pytest.mark.parametrize("hash_block", [sha256_block, constant_hash])
def test_prefix_is_not_shared_across_salts_and_adapters(
    namespace: Namespace, other: Namespace, hash_block: HashBlock
) -> None:
    pool = BlockPool(8)
    finished_request(pool, PROMPT, keys_of(PROMPT, namespace, hash_block))
    assert pool.find_prefix(keys_of(PROMPT, other, hash_block), 3) == []


def test_hash_collision_never_gives_another_prefix() -> None:
    pool = BlockPool(16)
    prompts = [[first, *PROMPT] for first in range(20, 24)]
    for prompt in prompts:
        finished_request(pool, prompt, keys_of(prompt, hash_block=constant_hash))
        pool.check_invariants()
    for prompt in (*prompts, PROMPT, PROMPT[4:]):
        own = keys_of(prompt, hash_block=constant_hash)
        for index, block in enumerate(pool.find_prefix(own, len(prompt) // BLOCK)):
            assert pool._published[block].tokens == own.tokens(index)


def test_child_of_an_evicted_prefix_is_not_taken_for_the_child_of_its_successor() -> None:
    """With colliding keys, the same tokens behind another parent must not match."""
    pool = BlockPool(8)
    finished_request(pool, [1] * 4 + [7] * 4, keys_of([1] * 4 + [7] * 4, hash_block=constant_hash))
    assert pool.find_prefix(keys_of([2] * 4 + [7] * 4, hash_block=constant_hash), 2) == []


def test_duplicate_of_a_published_block_becomes_free_when_released() -> None:
    pool = BlockPool(8)
    first_keys, second_keys = keys_of(PROMPT), keys_of(PROMPT)
    first, second = pool.allocate(3), pool.allocate(3)
    for index in range(3):
        pool.publish(first_keys, index, first[index])
        pool.publish(second_keys, index, second[index])
    pool.release(second)
    assert (pool.num_held, pool.num_cached) == (3, 0)
    pool.release(first)
    assert (pool.num_cached, found(pool, PROMPT)) == (3, first)


def test_forgotten_block_is_not_found_and_its_holder_keeps_it() -> None:
    pool = BlockPool(8)
    held = compute(pool, PROMPT)
    pool.forget(held[1])
    assert found(pool, PROMPT) == held[:1]
    assert pool.num_held == 3
    pool.release(held)
    pool.check_invariants()
    assert pool.num_cached == 2


def test_forgetting_a_cached_block_frees_it() -> None:
    pool = BlockPool(8)
    blocks = finished_request(pool, PROMPT)
    pool.forget(blocks[0])
    pool.check_invariants()
    assert (pool.num_cached, pool.num_available, found(pool, PROMPT)) == (2, 8, [])


def test_check_of_invariants_notices_a_leak_and_a_double_release() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(2)
    pool._holders[blocks[0]] = 0
    with pytest.raises(LlmError, match="a block is in no state"):
        pool.check_invariants()
    pool = BlockPool(4)
    blocks = pool.allocate(2)
    pool.release(blocks)
    pool.release(blocks)
    with pytest.raises(LlmError, match="a count is negative"):
        pool.check_invariants()


class PoolMachine(RuleBasedStateMachine):
    """Random requests over few tokens, against a model that only knows contents.

    The model keeps, for every block, the exact content that was computed into it (all tokens up to its end, and the
    namespace). A found block must hold exactly that; counts must be those of the requests that are open.
    """

    requests = Bundle("requests")
    hash_block: HashBlock = staticmethod(sha256_block)

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(10)
        self.content: dict[int, tuple[Namespace, tuple[int, ...]]] = {}
        self.open: list[list[int]] = []

    @rule(
        target=requests,
        tokens=st.lists(st.integers(0, 1), min_size=1, max_size=18),
        namespace=st.sampled_from([Namespace(), Namespace("s"), Namespace(adapter="s")]),
    )
    def request(self, tokens: list[int], namespace: Namespace) -> object:
        keys = keys_of(tokens, namespace, self.hash_block)
        prefix = self.pool.find_prefix(keys, (len(tokens) - 1) // BLOCK)
        for index, block in enumerate(prefix):
            assert self.content[block] == (namespace, tuple(tokens[: (index + 1) * BLOCK])), "another one's content"
        needed = -(-len(tokens) // BLOCK) - len(prefix)
        idle_in_prefix = len(set(prefix) - {block for blocks in self.open for block in blocks})
        if needed > self.num_idle() - idle_in_prefix:
            before = (self.pool.num_available, self.pool.num_cached)
            with pytest.raises(OutOfBlocksError):
                self.pool.allocate(needed, prefix)
            assert (self.pool.num_available, self.pool.num_cached) == before
            return multiple()
        blocks = self.pool.allocate(needed, prefix)
        assert blocks[: len(prefix)] == prefix
        new = blocks[len(prefix) :]
        assert len(set(blocks)) == len(blocks)
        assert not set(new) & {block for others in self.open for block in others}, "a held block was given away"
        for index in range(len(prefix), len(tokens) // BLOCK):
            self.pool.publish(keys, index, blocks[index])
            self.content[blocks[index]] = (namespace, tuple(tokens[: (index + 1) * BLOCK]))
        self.open.append(blocks)
        return blocks

    @rule(blocks=consumes(requests))
    def release(self, blocks: list[int]) -> None:
        self.open.remove(blocks)
        self.pool.release(blocks)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted({block for blocks in self.open for block in blocks})))
        self.pool.forget(block)

    def num_idle(self) -> int:
        return self.pool.num_blocks - len({block for blocks in self.open for block in blocks})

    @invariant()
    def books_are_right(self) -> None:
        self.pool.check_invariants()
        assert self.pool.holders() == Counter(block for blocks in self.open for block in blocks)
        assert self.pool.num_available == self.num_idle()


class CollidingPoolMachine(PoolMachine):
    hash_block = staticmethod(constant_hash)


PoolMachine.TestCase.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
CollidingPoolMachine.TestCase.settings = settings(max_examples=20, stateful_step_count=30, deadline=None)
TestPoolAgainstModel = PoolMachine.TestCase
TestPoolWithCollidingHashAgainstModel = CollidingPoolMachine.TestCase
