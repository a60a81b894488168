"""Keys that find a full block of KV by all the tokens before it.

    tokens   [t0 t1 t2 t3] [t4 t5 t6 t7] [t8]          block_size 4
    keys      k0=H(s,b0)    k1=H(k0,b1)   none: a partial block is never shared
              s: the namespace, made of cache salt and adapter

A hash may collide, and two tenants' salts must not meet: a key only proposes a block. What proves it is the chain of
`identities`: a published block has a number that is never used again, and remembers its tokens and the number of
its parent, the first block its namespace. Equal tokens under an equal parent are equal content, whatever H is.
"""

import hashlib
from array import array
from collections.abc import Callable
from typing import NamedTuple

HashBlock = Callable[[bytes, bytes], bytes]
"""(key of the parent, the tokens' bytes) -> key."""


class Namespace(NamedTuple):
    """Prefixes are shared within one namespace only. An adapter named as a salt is another namespace."""

    cache_salt: str | None = None
    adapter: str | None = None


Identity = int | Namespace


def sha256_block(parent_key: bytes, token_bytes: bytes) -> bytes:
    return hashlib.sha256(parent_key + token_bytes).digest()


class BlockKeys:
    """The keys of one sequence's full blocks, made as far as they are asked for, each once.

    `identities[i]` is the identity of block i, for the blocks that the pool has found or published so far.
    """

    def __init__(
        self, tokens: list[int], block_size: int, namespace: Namespace, hash_block: HashBlock = sha256_block
    ) -> None:
        self._tokens = tokens  # the sequence's own list, which grows
        self._block_size = block_size
        self._namespace = namespace
        self._hash_block = hash_block
        self._keys: list[bytes] = []
        self.identities: list[int] = []

    def key(self, index: int) -> bytes:
        """Key of full block `index`; all its tokens must be known."""
        keys = self._keys
        while len(keys) <= index:
            parent_key = keys[-1] if keys else repr(self._namespace).encode()
            keys.append(self._hash_block(parent_key, array("q", self.tokens(len(keys))).tobytes()))
        return keys[index]

    def tokens(self, index: int) -> tuple[int, ...]:
        return tuple(self._tokens[index * self._block_size : (index + 1) * self._block_size])

    def parent(self, index: int) -> Identity:
        return self.identities[index - 1] if index else self._namespace

    def forked(self, tokens: list[int]) -> "BlockKeys":
        """Keys of a sequence that has the same tokens so far, in a list of its own."""
        fork = BlockKeys(tokens, self._block_size, self._namespace, self._hash_block)
        fork._keys = list(self._keys)
        fork.identities = list(self.identities)
        return fork
