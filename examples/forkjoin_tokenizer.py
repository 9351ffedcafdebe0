# SPDX-License-Identifier: Apache-2.0
"""The tokenizer of the tiny fork-join model: one token per character, and the special tokens."""

from string import ascii_lowercase, digits

from forkjoin_task import CHILD, EOS, PROMISE, SYNC
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers.tokenization_utils_fast import PreTrainedTokenizerFast

PAD = "<pad>"
UNKNOWN = "<unk>"
SPECIAL_TOKENS = (PAD, EOS, UNKNOWN, PROMISE, SYNC, CHILD)
CHARACTERS = ascii_lowercase + digits + " \n="


def build_tokenizer(characters: str = "", tags: tuple[str, ...] = ()) -> PreTrainedTokenizerFast:
    """A fast tokenizer that adds no token by itself and pads on the left.

    Args:
        characters, tags: Further tokens, of one character or several; they follow the tiny model's own.
    """
    vocabulary = {token: index for index, token in enumerate((*SPECIAL_TOKENS, *CHARACTERS, *characters, *tags))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in (*SPECIAL_TOKENS, *tags)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        additional_special_tokens=[PROMISE, SYNC, CHILD],
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=512,
    )
