"""Write a tiny llama model with random weights, so that tests run a real engine in milliseconds.

    python -m tests.fakes.tiny_gguf OUT.gguf [--seed 7] [--layers 2]

The vocabulary is a byte-level BPE trained on a text of ours, with the ChatML control tokens. The
weights are random but of use to a test: every layer attends to the whole context, so that a greedy
answer depends on all of it. Full attention: stored KV of this model can be cut back. The same
options give the same bytes.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>")
SHARP = 2.0
"""Scale of queries and keys: high, so that a token of long ago can win the attention."""
WORD = re.compile("Ġ(?:[A-Za-z]+|[0-9]+)")
"""Tokens that are one word and the blank before it; any row of them is tokenised into itself."""
_SUBJECTS = (
    "The adviser",
    "A client",
    "The fraud team",
    "Our service desk",
    "The compliance officer",
)
_VERBS = ("reviews", "approves", "reports", "transfers", "explains", "checks", "closes", "opens")
_OBJECTS = (
    "the monthly statement of account {n}",
    "a payment of {n} euros to the supplier",
    "the suspicious login from a new device at {n} hours",
    "a portfolio of {n} bonds and shares",
    'the record {{"name": "lookup", "arguments": {{"id": {n}, "city": "Zürich"}}}}',
    "第{n}条 客户经理应当核实账户信息",
    "the question of the customer about fee number {n}",
)
_ENDS = (" before noon.", " for the second time.", ", and writes a note.", " again?", "!\n")


@dataclass(frozen=True, slots=True)
class Shape:
    """Size of the model. `vocab` includes the 256 bytes and the control tokens.

    With `whole_words` a greedy answer has only tokens of one whole word with its blank, and no end:
    its text has the very tokens that were sampled, and as many as were asked for.
    """

    layers: int = 2
    hidden: int = 64
    heads: int = 2
    kv_heads: int = 2
    vocab: int = 2048
    context: int = 16_384
    seed: int = 7
    whole_words: bool = False


def corpus() -> list[str]:
    """Return the sentences that the vocabulary is trained on."""
    number = 0
    lines = []
    for subject in _SUBJECTS:
        for verb in _VERBS:
            for thing in _OBJECTS:
                for end in _ENDS:
                    number = (number * 31 + 17) % 9973
                    lines.append(f"{subject} {verb} {thing.format(n=number)}{end}")
    return lines


def train_tokenizer(vocab: int) -> Tokenizer:
    """Return a byte-level BPE of `vocab` tokens; the control tokens come first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=list(CONTROL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    return tokenizer


def write(path: Path, shape: Shape | None = None) -> Path:
    """Write the model file and return its path. Cost: about a second."""
    shape = shape or Shape()
    tokenizer = train_tokenizer(shape.vocab)
    vocab = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    tokens = [text for text, _ in vocab]
    merges = _merges(tokenizer)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("bedplate tiny")
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.hidden * 2)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(shape.hidden // shape.heads)
    writer.add_vocab_size(len(tokens))
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(
        [gguf.TokenType.CONTROL if text in CONTROL else gguf.TokenType.NORMAL for text in tokens]
    )
    writer.add_token_merges(merges)
    writer.add_eos_token_id(tokens.index("<|im_end|>"))
    writer.add_bos_token_id(tokens.index("<|endoftext|>"))
    writer.add_pad_token_id(tokens.index("<|pad|>"))
    writer.add_add_bos_token(False)
    for name, array in _weights(shape, len(tokens)):
        if shape.whole_words and name == "output.weight":
            array[[index for index, text in enumerate(tokens) if not WORD.fullmatch(text)]] = 0
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _merges(tokenizer: Tokenizer) -> list[str]:
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return [pair if isinstance(pair, str) else " ".join(pair) for pair in merges]


def _weights(shape: Shape, vocab: int) -> list[tuple[str, np.ndarray]]:
    """Return the tensors, in the order and under the names of llama.cpp."""
    random = np.random.default_rng(shape.seed)
    head = shape.hidden // shape.heads
    kv_width = head * shape.kv_heads

    def matrix(rows: int, columns: int, scale: float = 1.0) -> np.ndarray:
        values: np.ndarray = random.standard_normal((rows, columns)) * scale / np.sqrt(columns)
        narrow: np.ndarray = values.astype(np.float32)
        return narrow

    ones = np.ones(shape.hidden, dtype=np.float32)
    tensors = [
        ("token_embd.weight", matrix(vocab, shape.hidden)),
        ("output_norm.weight", ones),
        ("output.weight", matrix(vocab, shape.hidden, 4.0)),
    ]
    for layer in range(shape.layers):
        block = f"blk.{layer}"
        tensors += [
            (f"{block}.attn_norm.weight", ones),
            (f"{block}.attn_q.weight", matrix(shape.hidden, shape.hidden, SHARP)),
            (f"{block}.attn_k.weight", matrix(kv_width, shape.hidden, SHARP)),
            (f"{block}.attn_v.weight", matrix(kv_width, shape.hidden, 8.0)),
            (f"{block}.attn_output.weight", matrix(shape.hidden, shape.hidden, 8.0)),
            (f"{block}.ffn_norm.weight", ones),
            (f"{block}.ffn_gate.weight", matrix(shape.hidden * 2, shape.hidden)),
            (f"{block}.ffn_up.weight", matrix(shape.hidden * 2, shape.hidden)),
            (f"{block}.ffn_down.weight", matrix(shape.hidden, shape.hidden * 2)),
        ]
    return tensors


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the model named on the command line."""
    parser = argparse.ArgumentParser(description="Write a tiny random llama model.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=Shape().seed)
    parser.add_argument("--layers", type=int, default=Shape().layers)
    options = parser.parse_args(arguments)
    path = write(options.out, Shape(seed=options.seed, layers=options.layers))
    print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
