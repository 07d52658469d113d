"""transformers' Trainer on rows of equal tokens, with PEFT, bitsandbytes and FSDP on request.

Run by `memtune emulate`, with a Python that has transformers. Weights are never initialized: their memory is untouched.
Prints nothing; the emulation has the peaks.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from typing import Any

import emulated_flash_attention
import torch

emulated_flash_attention.install()
import transformers  # noqa: E402  # it has to find flash-attn
from transformers import Trainer, TrainingArguments  # noqa: E402
from transformers.modeling_utils import no_init_weights  # type: ignore[attr-defined]  # noqa: E402  # up to 4.x

STEPS = 2
_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32, "fp16": torch.float16}
_ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]


class FormerSoftmax(torch.autograd.Function):
    """Softmax up to torch 1.10, which kept its input for the backward pass beside its output."""

    @staticmethod
    def forward(context: Any, scores: torch.Tensor, dim: int) -> torch.Tensor:
        """The result of torch's own."""
        result = torch.softmax(scores, dim)
        context.save_for_backward(scores, result)
        context.dim = dim
        return result

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """As torch's own, which needs the result alone."""
        scores, result = context.saved_tensors
        return torch.ops.aten._softmax_backward_data(gradient, result, context.dim, scores.dtype), None


def former_softmax(scores: torch.Tensor, dim: int) -> torch.Tensor:
    """It, as attention calls it."""
    return FormerSoftmax.apply(scores, dim)  # type: ignore[no-any-return,no-untyped-call]


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """A number of equal rows."""

    def __init__(self, rows: int, length: int, labelled: bool) -> None:
        self._rows, self._length, self._labelled = rows, length, labelled

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, _: int) -> dict[str, torch.Tensor]:
        tokens = torch.ones(self._length, dtype=torch.long)
        return {"input_ids": tokens, "labels": torch.tensor(0) if self._labelled else tokens}


def built(options: argparse.Namespace) -> Any:
    """The model, with its device and its trainable part."""
    config = transformers.AutoConfig.for_model(**json.loads(options.config))
    kind = getattr(transformers, f"AutoModelFor{options.task}")
    torch.set_default_dtype(_DTYPES[options.weights])
    with no_init_weights(_enable=True):
        attention = {"attn_implementation": options.attention} if options.attention else {}
        model = kind.from_config(config, torch_dtype=_DTYPES[options.weights], **attention)
    model.tie_weights()  # without weights to initialize it was left out
    torch.set_default_dtype(torch.float32)
    if options.quantized:
        quantize(model)
        model = peft().prepare_model_for_kbit_training(model, use_gradient_checkpointing=True)
    if options.lora:
        targets = options.targets or _ATTENTION
        adapter = peft().LoraConfig(
            r=options.lora, lora_alpha=16, lora_dropout=0.1, target_modules=targets, task_type="CAUSAL_LM"
        )
        model = peft().get_peft_model(model, adapter, autocast_adapter_dtype=options.fp32_adapter)
        if options.checkpointing and not options.quantized:
            model.enable_input_require_grads()
    return model


def peft() -> Any:
    """Imported on demand: not every row needs it."""
    import peft as found

    return found


def quantize(model: Any) -> None:
    """Convert each product except the head to nf4, as transformers loads it, one after the other."""
    import bitsandbytes

    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, torch.nn.Linear) and name != "lm_head":
                with torch.device("meta"):
                    product = bitsandbytes.nn.Linear4bit(
                        child.in_features, child.out_features, child.bias is not None,
                        compute_dtype=torch.bfloat16, quant_type="nf4",
                    )  # fmt: skip
                weight = bitsandbytes.nn.Params4bit(
                    child.weight.data, requires_grad=False, quant_type="nf4", module=product
                )
                product.weight = weight.to("cuda")
                product.requires_grad_(False)
                setattr(module, name, product)
    model.to("cuda")
    model.is_loaded_in_4bit = model.is_quantized = True
    model.hf_quantizer = type("Trained", (), {"is_trainable": True, "is_qat_trainable": False})()


def main() -> None:
    """Two steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("config", help="the model's config.json")
    parser.add_argument("--task", default="CausalLM")
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--weights", choices=_DTYPES, default="bf16")
    parser.add_argument("--autocast", choices=["bf16", "fp16"])
    parser.add_argument("--attention", default="flash_attention_2")
    parser.add_argument("--optimizer", default="adamw_torch")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--fsdp", default="", help="the class of the blocks that are sharded")
    parser.add_argument("--lora", type=int, default=0)
    parser.add_argument("--targets", nargs="+")
    parser.add_argument("--fp32-adapter", action="store_true")
    parser.add_argument("--quantized", action="store_true")
    parser.add_argument("--former-softmax", action="store_true")
    options = parser.parse_args()
    if options.former_softmax:
        torch.nn.functional.softmax = former_softmax  # type: ignore[assignment]
    model = built(options)
    settings: dict[str, Any] = {options.autocast: True} if options.autocast else {}
    if options.fsdp:
        settings["fsdp"] = "full_shard auto_wrap"
        settings["fsdp_config"] = {
            "transformer_layer_cls_to_wrap": [options.fsdp], "backward_prefetch": "backward_pre",
            "sync_module_states": True, "use_orig_params": True,
        }  # fmt: skip
    with tempfile.TemporaryDirectory() as directory:
        arguments = TrainingArguments(
            directory, max_steps=STEPS, per_device_train_batch_size=options.rows, save_strategy="no",
            gradient_accumulation_steps=options.accumulation, gradient_checkpointing=options.checkpointing,
            optim=options.optimizer, report_to=[], disable_tqdm=True, logging_strategy="no",
            **settings,
        )  # fmt: skip
        data = Rows(64 * options.rows * options.accumulation * 8, options.length, options.task != "CausalLM")
        trainer = Trainer(model=model, args=arguments, train_dataset=data)
        if options.fsdp and options.lora:
            # As fms-hf-tuning does: what is trained is wrapped by itself.
            from peft.utils.other import fsdp_auto_wrap_policy

            plugin: Any = trainer.accelerator.state.fsdp_plugin
            plugin.auto_wrap_policy = fsdp_auto_wrap_policy(model)  # type: ignore[no-untyped-call]  # PEFT's
        trainer.train()


if __name__ == "__main__":
    main()
