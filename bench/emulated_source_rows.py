"""Published runs of other packages: the packages of each project's environment, and the arguments of each run.

Packages have the releases that the source names or that require each other, as far as PyPI and the emulated GPU have
them: torch is 2.6.0 if the source names an older one, or 2.5.1 if it is of that date and that matters.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from memtune.units import MIB


class Source(NamedTuple):
    """A project that published peaks. ``packages`` are all that its environment has, installed without dependencies."""

    script: str
    packages: tuple[str, ...]
    rows: Mapping[str, tuple[str, ...]]
    variables: Mapping[str, str] = {}
    # Added to the arguments if the peak depends on something unstated: the other extreme.
    other_end: Callable[[tuple[str, ...]], tuple[str, ...]] = lambda _: ()
    # The default is the GPU with most memory: no run was near its limit. Its chip decides on kernels.
    gpu: str = "h200-141gb"
    # The context of its own GPU as measured by the source, for peaks that are the driver's.
    context_bytes: int = 0
    # The number of ranks of a row that is not alone.
    ranks: Mapping[str, int] = {}


_ALL_LAYERS = ("--targets", "query", "key", "value", "projection", "mlp", "head")
_NF4, _DOUBLE = ("--quantized", "nf4"), ("--quantized", "nf4-dq")


def _rows(model: str, rows: int, rank: int, length: int = 512) -> tuple[str, ...]:
    return (model, "--rows", str(rows), "--rank", str(rank), "--length", str(length))


def _all_as_long(arguments: tuple[str, ...]) -> tuple[str, ...]:
    """bitsandbytes 0.42 keeps each 4-bit product's input, and the previous micro-batch's while its loss lives.

    So the peak depends on the length of the micro-batches after the longest.
    """
    return ("--others", arguments[arguments.index("--length") + 1]) if "--quantized" in arguments else ()


_LITGPT = Source(
    "emulated_litgpt.py",
    (
        "torch===2.6.0", "litgpt==0.5.0", "lightning==2.4.0", "lightning-utilities==0.15.3", "torchmetrics==1.9.0",
        "bitsandbytes==0.42.0", "scipy==1.15.3", "jsonargparse==4.53.0", "typeshed-client==2.14.0",
        "docstring-parser==0.18.0",
        "importlib-resources==7.1.0", "huggingface-hub==0.36.2", "tokenizers==0.21.0", "safetensors==0.8.0",
        "typing-extensions==4.16.0", "sympy==1.13.1", "mpmath==1.3.0", "networkx==3.6.1", "jinja2==3.1.6",
        "markupsafe==3.0.4", "fsspec==2026.9.0", "filelock==4.2.12", "numpy==2.4.6", "packaging==26.3", "pyyaml==6.0.3",
        "requests==2.34.2", "urllib3==2.8.0", "certifi==2026.10.18", "charset-normalizer==3.5.2", "idna==3.20",
        "tqdm==4.70.1", "setuptools==65.5.0",
    ),
    {
        "litgpt-01": _rows("falcon-7b", 1, 32),
        "litgpt-02": (*_rows("falcon-7b", 1, 32), *_NF4),
        "litgpt-03": (*_rows("Gemma-2b", 2, 8), *_ALL_LAYERS),
        "litgpt-04": (*_rows("Gemma-2b", 2, 16), *_ALL_LAYERS, *_NF4),
        "litgpt-05": (*_rows("Gemma-7b", 1, 16), *_ALL_LAYERS, *_NF4),
        "litgpt-06": (*_rows("Gemma-2-2b", 2, 8), *_ALL_LAYERS),
        "litgpt-09": _rows("Llama-2-7b-hf", 2, 32),
        "litgpt-11": _rows("Llama-3.1-8B", 1, 32),
        "litgpt-12": (*_rows("Llama-3.1-8B", 2, 32), *_NF4),
        "litgpt-13": _rows("Llama-3.2-1B", 1, 32),
        "litgpt-14": (*_rows("Llama-3.2-1B", 2, 32), *_NF4),
        "litgpt-15": _rows("Llama-3.2-3B", 1, 32),
        "litgpt-16": (*_rows("Llama-3.2-3B", 2, 32), *_NF4),
        "litgpt-17": _rows("Mistral-7B-v0.1", 2, 32),
        "litgpt-18": (*_rows("Mistral-7B-v0.1", 2, 32), *_NF4),
        "litgpt-19": (*_rows("phi-2", 4, 8), *_ALL_LAYERS),
        "litgpt-21": (*_rows("Phi-3-mini-4k-instruct", 4, 8), *_ALL_LAYERS),
        "litgpt-23": _rows("stablelm-base-alpha-3b", 1, 32),
        "litgpt-24": (*_rows("stablelm-base-alpha-3b", 1, 32), *_NF4),
        "litgpt-25": (*_rows("tiny-llama-1.1b", 8, 32), *_ALL_LAYERS),
        "litgpt-26": (*_rows("tiny-llama-1.1b", 8, 32), *_ALL_LAYERS, *_NF4),
        "litgptrt-01": _rows("phi-1_5", 1, 8, 1044),
        "litgptrt-02": (*_rows("phi-1_5", 1, 8, 1044), *_NF4),
        "litgptrt-03": (*_rows("phi-1_5", 1, 8, 1044), *_DOUBLE),
        "litgptrt-04": _rows("phi-1_5", 2, 8, 1044),
        "litgptrt-05": _rows("phi-1_5", 4, 8, 1044),
        "litgptrt-06": _rows("stablelm-base-alpha-3b", 1, 8, 1034),
        "litgptrt-07": (*_rows("stablelm-base-alpha-3b", 1, 8, 1034), *_NF4),
        "litgptrt-09": _rows("stablelm-base-alpha-3b", 2, 8, 1034),
        "litgptrt-10": _rows("stablelm-base-alpha-3b", 4, 8, 1034),
        "litgptrt-12": (*_rows("Llama-2-7b-hf", 1, 8, 1304), *_NF4),
        "litgptrt-13": (*_rows("Llama-2-7b-hf", 1, 8, 1304), *_DOUBLE),
        "litgptrt-14": _rows("Llama-2-7b-hf", 2, 8, 1304),
        "litgptrt-17": (*_rows("Llama-2-13b-hf", 1, 8, 1304), *_DOUBLE),
    },
    # The newest CUDA that this release of bitsandbytes was built for; its libraries run on any later one.
    {"BNB_CUDA_VERSION": "123"},
    _all_as_long,
)  # fmt: skip
_BASE = (
    "torch===2.6.0", "typing-extensions==4.16.0", "sympy==1.13.1", "mpmath==1.3.0", "networkx==3.6.1", "jinja2==3.1.6",
    "markupsafe==3.0.4", "fsspec==2024.12.0", "filelock==4.2.12", "numpy==2.4.6", "packaging==26.3", "pyyaml==6.0.3",
    "requests==2.34.2", "urllib3==2.8.0", "certifi==2026.10.18", "charset-normalizer==3.5.2", "idna==3.20",
    "tqdm==4.70.1", "setuptools==65.5.0", "regex==2026.11.15", "safetensors==0.8.0", "huggingface-hub==0.36.2",
    "psutil==7.2.2", "pillow==13.0.0",
)  # fmt: skip


def _config(model_type: str, **facts: Any) -> str:
    return json.dumps({"model_type": model_type, **facts})


_MISTRAL_SIZES = {
    "vocab_size": 32_000, "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 32_768,
}  # fmt: skip
_MISTRAL = _config("mistral", sliding_window=4096, **_MISTRAL_SIZES)
_MIXTRAL = _config("mixtral", **_MISTRAL_SIZES)
_SANTACODER = _config(
    "gpt_bigcode", vocab_size=49_280, n_embd=2048, n_inner=8192, n_layer=24, n_head=16, n_positions=2048,
    multi_query=True,
)  # fmt: skip
_POWER_LM = _config(
    "granite", vocab_size=49_152, hidden_size=2304, intermediate_size=9216, num_hidden_layers=40,
    num_attention_heads=36, num_key_value_heads=36, max_position_embeddings=4096, tie_word_embeddings=True,
)  # fmt: skip


def _trainer(config: str, rows: int, *options: str) -> tuple[str, ...]:
    return (config, "--rows", str(rows), "--checkpointing", *options)


_LORA = ("--lora", "16")
_QLORA = (*_LORA, "--quantized", "--autocast", "bf16", "--fp32-adapter")
_CODE = ("--length", "2048")
_FMS_ROWS = {
    "fms-02": _trainer(_SANTACODER, 2, *_CODE, "--fsdp", "GPTBigCodeBlock"),
    "fms-03": _trainer(_SANTACODER, 8, *_CODE),
    "fms-04": _trainer(_SANTACODER, 4, *_CODE, "--fsdp", "GPTBigCodeBlock"),
    "fms-05": _trainer(_MISTRAL, 4),
    "fms-06": _trainer(_MISTRAL, 2, "--fsdp", "MistralDecoderLayer"),
    "fms-07": _trainer(_MISTRAL, 8),
    "fms-09": _trainer(_MISTRAL, 4, *_LORA),
    "fms-10": _trainer(_MISTRAL, 2, *_LORA, "--fsdp", "MistralDecoderLayer"),
    "fms-11": _trainer(_MISTRAL, 8, *_LORA),
    "fms-12": _trainer(_MISTRAL, 4, *_LORA, "--fsdp", "MistralDecoderLayer"),
    "fms-13": _trainer(_MIXTRAL, 2, *_LORA, "--fsdp", "MixtralDecoderLayer"),
    "fms-14": _trainer(_MIXTRAL, 4, *_LORA, "--fsdp", "MixtralDecoderLayer"),
    "fms-17": _trainer(_MISTRAL, 8, *_QLORA),
}
_POWER_ROWS = {
    "fms-24": _trainer(_POWER_LM, 4),
    "fms-27": _trainer(_POWER_LM, 4, "--fsdp", "GraniteDecoderLayer"),
    "fms-29": _trainer(_POWER_LM, 2, *_LORA, "--fsdp", "GraniteDecoderLayer"),
    "fms-30": _trainer(_POWER_LM, 8, *_LORA),
    "fms-31": _trainer(_POWER_LM, 4, *_LORA, "--fsdp", "GraniteDecoderLayer"),
}
_TWO = dict.fromkeys(
    ("fms-02", "fms-04", "fms-06", "fms-10", "fms-12", "fms-13", "fms-14", "fms-27", "fms-29", "fms-31"), 2
)
_FMS = Source(
    "emulated_trainer.py",
    (*_BASE, "transformers==4.48.1", "tokenizers==0.21.0", "accelerate==1.0.1", "peft==0.13.2", "bitsandbytes==0.43.3"),
    _FMS_ROWS,
    gpu="a100-80gb",
    ranks=_TWO,
)
# These ran with the releases that the source required at that date.
_POWER = Source(
    "emulated_trainer.py",
    (*_BASE, "transformers==4.45.2", "tokenizers==0.20.3", "accelerate==1.0.1", "peft==0.13.2", "bitsandbytes==0.43.3"),
    _POWER_ROWS,
    gpu="a100-80gb",
    ranks=_TWO,
)


def _video(model: str, rows: int, *options: str) -> tuple[str, ...]:
    return (model, "--rows", str(rows), *options)


_KEPT, _EIGHT_BIT = "--checkpointing", ("--optimizer", "adamw-8bit")
_COGVIDEOX = Source(
    "emulated_cogvideox.py",
    (
        *_BASE, "diffusers==0.32.2", "transformers==4.48.1", "tokenizers==0.21.0", "accelerate==1.3.0", "peft==0.14.0",
        "torchao==0.7.0", "bitsandbytes==0.45.2", "importlib-metadata==10.2.0", "zipp==4.1.2",
    ),
    {
        "cogvx-01": _video("2b", 1, "--lora", "16"),
        "cogvx-02": _video("2b", 1, "--lora", "64"),
        "cogvx-03": _video("2b", 1, "--lora", "256"),
        "cogvx-04": _video("2b", 4, "--lora", "64", _KEPT),
        "cogvx-05": _video("5b", 4, "--lora", "16", _KEPT),
        "cogvx-06": _video("5b", 4, "--lora", "64", _KEPT),
        "cogvx-07": _video("5b", 4, "--lora", "256", _KEPT),
        "cogvx-08": _video("2b", 1, _KEPT),
        "cogvx-09": _video("2b", 4, _KEPT),
        "cogvx-10": _video("2b", 4, _KEPT, *_EIGHT_BIT),
        "cogvx-11": _video("5b", 1, _KEPT, *_EIGHT_BIT),
        "cogvx-12": _video("5b", 4, _KEPT, *_EIGHT_BIT),
    },
    gpu="a100-80gb",
)  # fmt: skip

_ADAMW = "optimizer._component_=torch.optim.AdamW"
_AT_ONCE, _IN_BACKWARD = "optimizer_in_bwd=False", "optimizer_in_bwd=True"
_OFFLOADED, _COMPILED = "enable_activation_offloading=True", "compile=True"
_SIZE = ("batch_size=2", "length=4096", "epochs=1")


def _full(*options: str) -> tuple[str, ...]:
    return ("full_finetune_single_device", "llama3_2/3B_full_single_device", *_SIZE, *options)


def _adapted(config: str) -> tuple[str, ...]:
    saving = ("gradient_accumulation_steps=1", "enable_activation_checkpointing=True", _OFFLOADED)
    return ("lora_finetune_single_device", f"llama3_2/{config}", *_SIZE, *saving, _COMPILED)


# The releases of November 2024, when the source's table was made.
_TORCHTUNE = Source(
    "emulated_torchtune.py",
    (
        "torch===2.5.1", *_BASE[1:], "triton==3.1.0", "torchtune==0.4.0", "torchao==0.6.1", "torchvision==0.20.1",
        "bitsandbytes==0.45.2", "omegaconf==2.4.0", "antlr4-python3-runtime==4.9.3", "datasets==3.2.0",
        "tiktoken==0.14.0", "kagglehub==1.0.3", "pyarrow==26.0.1", "tokenizers==0.21.0", "pandas==3.1.1",
        "dill==0.4.1", "xxhash==4.1.0", "multiprocess==0.70.19",
        "aiohttp==3.14.5", "aiohappyeyeballs==2.7.1", "aiosignal==1.4.0", "attrs==26.1.0", "frozenlist==1.8.0",
        "multidict==7.2.1", "propcache==0.5.4", "yarl==1.25.1", "python-dateutil==4.0.0", "pytz==2026.6",
        "six==1.17.0", "blobfile==3.3.0", "lxml==6.1.3", "pycryptodomex==3.24.2", "sentencepiece==0.2.3",
    ),
    {
        "tune-01": _full(
            _ADAMW, _AT_ONCE, "enable_activation_checkpointing=False", "loss._component_=torch.nn.CrossEntropyLoss",
        ),
        "tune-03": _full(_ADAMW, _AT_ONCE, _COMPILED, "enable_activation_checkpointing=False"),
        # 8 bytes for each weight are left after its first step: it was the fused AdamW, the others do not show.
        "tune-04": _full(_ADAMW, "optimizer.fused=True", _AT_ONCE, _COMPILED),
        "tune-05": _full(_ADAMW, _IN_BACKWARD, _COMPILED),
        "tune-06": _full(_ADAMW, _IN_BACKWARD, _OFFLOADED, _COMPILED),
        "tune-07": _full(
            "optimizer._component_=torchao.prototype.low_bit_optim.AdamW8bit", _IN_BACKWARD, _OFFLOADED, _COMPILED
        ),
        "tune-08": _adapted("3B_lora_single_device"),
        "tune-09": _adapted("3B_qlora_single_device"),
    },
    gpu="a100-80gb",
)  # fmt: skip

_BERT = _config(
    "bert", vocab_size=30_522, hidden_size=1024, intermediate_size=4096, num_hidden_layers=24, num_attention_heads=16,
    max_position_embeddings=512,
)  # fmt: skip


# The Trainer's default at that date: its own AdamW, one weight at a time.
_FORMER_ADAMW = ("--optimizer", "adamw_hf")


def _classifier(*options: str) -> tuple[str, ...]:
    return (
        _BERT, "--task", "SequenceClassification", "--rows", "1", "--length", "512", "--accumulation", "4",
        "--weights", "fp32", "--attention", "eager", "--former-softmax", *options,
    )  # fmt: skip


_TRANSFORMERS = Source(
    "emulated_trainer.py",
    _FMS.packages,
    {
        "bert-02": _classifier(*_FORMER_ADAMW),
        "bert-05": _classifier("--autocast", "fp16", _KEPT, *_FORMER_ADAMW),
        "bert-09": _classifier("--autocast", "fp16", _KEPT, "--optimizer", "adamw_bnb_8bit"),
    },
    gpu="v100-16gb",
    context_bytes=1343 * MIB,
)
SOURCES = {
    "litgpt": _LITGPT,
    "fms-acceleration": _FMS,
    "fms-acceleration-granite": _POWER,
    "cogvideox-factory": _COGVIDEOX,
    "torchtune": _TORCHTUNE,
    "transformers": _TRANSFORMERS,
}
