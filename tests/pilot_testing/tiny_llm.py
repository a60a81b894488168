"""A model repository with a random Llama of a few hundred kilobytes: real files, loads in a moment, says nonsense.

It speaks bytes: 256 of them, a few merges over English, and special tokens. So any text is a prompt, and its answers
hold broken characters, as any model's may while a character is not complete.
"""

import functools
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from pilot_testing.made_once import one_process_at_a_time

_CORPUS = (
    "Once upon a time there was a server that answered every question. The sky is blue because the air scatters the "
    "light of the sun. Why is the sky blue? The quick brown fox jumps over the lazy dog. One two three four five. "
)
_SPECIAL = ["<|begin|>", "<|end|>", "<|user|>", "<|assistant|>"]
BEGIN_ID, END_ID = 0, 1
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|{{ message.role }}|>{{ message.content }}{% endfor %}<|assistant|>"
)


def make_repository(root: Path, name: str = "tiny", **settings: Any) -> Path:
    """A repository that holds one model; `settings` go into its model.json. Returns the repository."""
    compile_kernels()
    version_dir = root / name / "1"
    make_model_folder(version_dir)
    write_model_json(root, name, **settings)
    (root / name / "config.pbtxt").write_text('backend: "inflight"\n')
    return root


@functools.cache
def compile_kernels() -> None:
    """The first load on a machine compiles the CPU kernels, most of a minute: not while a test waits for a server."""
    load = (
        "import sys; from pathlib import Path; from pilot_llm.config import EngineConfig; "
        "from pilot_llm.runner import load_runner; folder = Path(sys.argv[1]); "
        "load_runner(EngineConfig.from_json(folder / 'model.json', folder))"
    )
    with one_process_at_a_time("kernels"), tempfile.TemporaryDirectory() as name:
        make_model_folder(Path(name) / "tiny" / "1")
        write_model_json(Path(name))
        subprocess.run([sys.executable, "-c", load, str(Path(name) / "tiny" / "1")], check=True)


def write_model_json(root: Path, name: str = "tiny", **settings: Any) -> None:
    """`settings` over a configuration that loads and answers fast."""
    defaults = {"model": ".", "max_model_len": 512, "max_num_seqs": 64, "kv_cache_memory_bytes": 8 << 20}
    (root / name / "1" / "model.json").write_text(json.dumps({**defaults, **settings}, indent=2))


def make_model_folder(folder: Path, seed: int = 0) -> None:
    """Weights, config.json and tokenizer as Hugging Face lays them out."""
    folder.mkdir(parents=True, exist_ok=True)
    vocab_size = _write_tokenizer(folder)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": vocab_size,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": BEGIN_ID,
        "eos_token_id": END_ID,
    }
    (folder / "config.json").write_text(json.dumps(config))
    save_file(_weights(config, seed), folder / "model.safetensors")


def _weights(config: dict[str, Any], seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    kv = config["num_key_value_heads"] * config["head_dim"]

    def matrix(rows: int, columns: int) -> Any:
        return (random.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)

    ones = np.ones(hidden, np.float32)
    weights = {
        "model.embed_tokens.weight": matrix(vocab, hidden) * 8,
        "model.norm.weight": ones,
        # Wide logits: the two best tokens are seldom close, so greedy answers do not hang on rounding.
        "lm_head.weight": matrix(vocab, hidden) * 4,
    }
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        weights |= {
            f"{prefix}.input_layernorm.weight": ones,
            f"{prefix}.post_attention_layernorm.weight": ones,
            f"{prefix}.self_attn.q_proj.weight": matrix(hidden, hidden),
            f"{prefix}.self_attn.k_proj.weight": matrix(kv, hidden),
            f"{prefix}.self_attn.v_proj.weight": matrix(kv, hidden),
            f"{prefix}.self_attn.o_proj.weight": matrix(hidden, hidden),
            f"{prefix}.mlp.gate_proj.weight": matrix(inner, hidden),
            f"{prefix}.mlp.up_proj.weight": matrix(inner, hidden),
            f"{prefix}.mlp.down_proj.weight": matrix(hidden, inner),
        }
    # The end token is all but impossible: an answer is as long as it was asked to be.
    weights["lm_head.weight"][END_ID] = 0
    return weights


def _write_tokenizer(folder: Path) -> int:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=384,
        special_tokens=_SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_CORPUS], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{_SPECIAL[0]} $A", special_tokens=[(_SPECIAL[0], BEGIN_ID)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": _SPECIAL[0], "eos_token": _SPECIAL[1], "chat_template": CHAT_TEMPLATE})
    )
    return int(tokenizer.get_vocab_size())
