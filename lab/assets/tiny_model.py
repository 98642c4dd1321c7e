"""Writes a model that a real vLLM server starts in seconds: the configuration of a Llama of two layers, whose weights
`--load-format dummy` makes up, and a byte-level tokenizer of 2,048 tokens, trained on this script and the Python beside it.

Usage: tiny_model.py FOLDER CONTEXT_TOKENS
"""

import json
import pathlib
import sys
import sysconfig

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL = ["<pad>", "<begin>", "<end>", "<|system|>", "<|user|>", "<|assistant|>"]
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def tokenizer():
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    library = pathlib.Path(sysconfig.get_paths()["stdlib"])
    texts = [pathlib.Path(__file__), *sorted(library.glob("*.py"))[:60]]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=2048, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator((text.read_text(errors="replace") for text in texts), trainer)
    return made


def main(folder, context):
    folder.mkdir(parents=True, exist_ok=True)
    made = tokenizer()
    made.save(str(folder / "tokenizer.json"))
    pad, begin, end = (made.token_to_id(token) for token in SPECIAL[:3])
    files = {
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "pad_token": SPECIAL[0],
            "bos_token": SPECIAL[1],
            "eos_token": SPECIAL[2],
            "model_max_length": context,
            "chat_template": TEMPLATE,
        },
        "config.json": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": made.get_vocab_size(),
            "max_position_embeddings": context,
            "num_hidden_layers": 2,
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "tie_word_embeddings": False,
            "torch_dtype": "float32",
            "pad_token_id": pad,
            "bos_token_id": begin,
            "eos_token_id": end,
        },
        "generation_config.json": {"bos_token_id": begin, "eos_token_id": end},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=1))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), int(sys.argv[2]))
