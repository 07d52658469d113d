"""The launchers that MemTune replaces: their names, and which of their options take no value.

Options not listed here take a value, so a new option of a launcher is parsed correctly unless it is a flag.
"""

from __future__ import annotations

from typing import NamedTuple


class KnownLauncher(NamedTuple):
    """How one launcher parses its command line. Names have hyphens here; the launcher accepts underscores as well.

    ``flags`` take no value, except that ``module`` and ``program`` give the kind of the target. ``local_rank`` is the
    option that passes the script its rank, unless ``without_local_rank`` is given.
    """

    name: str
    flags: frozenset[str]
    module: frozenset[str]
    program: frozenset[str]
    local_rank: str = ""
    without_local_rank: str = ""
    abbreviates: bool = True

    def takes_no_value(self, option: str) -> bool:
        """Whether the option takes no value; argparse lets users abbreviate the options of most launchers."""
        known = self.flags | self.module | self.program | {self.without_local_rank}
        return option in known or (self.abbreviates and any(each.startswith(option) for each in known))


_TORCHRUN = KnownLauncher(
    "torchrun",
    flags=frozenset({"--standalone", "--run-path", "--virtual-local-rank"}),
    module=frozenset({"-m", "--module"}),
    program=frozenset({"--no-python"}),
)
_TORCH_LAUNCH = _TORCHRUN._replace(
    name="torch.distributed.launch", local_rank="--local-rank", without_local_rank="--use-env"
)
_DEEPSPEED = KnownLauncher(
    "deepspeed",
    flags=frozenset(
        {"--no-ssh", "--no-ssh-check", "--force-multi", "--save-pid", "--bind-cores-to-rank", "-q", "--quiet"}
    ),
    module=frozenset({"--module"}),
    program=frozenset({"--no-python"}),
    local_rank="--local_rank",
    without_local_rank="--no-local-rank",
)
_ACCELERATE = KnownLauncher(
    "accelerate",
    flags=frozenset(
        {
            "-q",
            "--quiet",
            "--cpu",
            "--debug",
            "--downcast-bf16",
            "--dynamo-use-dynamic",
            "--dynamo-use-fullgraph",
            "--dynamo-use-regional-compilation",
            "--enable-cpu-affinity",
            "--fp8-use-autocast-during-eval",
            "--multi-gpu",
            "--no-tpu-cluster",
            "--same-network",
            "--tpu",
            "--tpu-cluster",
            "--tpu-use-sudo",
            "--use-deepspeed",
            "--use-fsdp",
            "--use-megatron-lm",
            "--use-parallelism-config",
        }
    ),
    module=frozenset({"-m", "--module"}),
    program=frozenset({"--no-python"}),
    abbreviates=False,
)

ACCELERATE = _ACCELERATE.name

# By program name and by module name. `accelerate` has other subcommands too: see command.py.
PROGRAMS = {
    "torchrun": _TORCHRUN,
    "deepspeed": _DEEPSPEED,
    "deepspeed.pt": _DEEPSPEED,
    "ds": _DEEPSPEED,
    "accelerate": _ACCELERATE,
    "accelerate-launch": _ACCELERATE,
}
MODULES = {
    "torch.distributed.run": _TORCHRUN,
    "torch.distributed.launch": _TORCH_LAUNCH,
    "deepspeed.launcher.runner": _DEEPSPEED,
    "accelerate.commands.accelerate_cli": _ACCELERATE,
    "accelerate.commands.launch": _ACCELERATE,
}
# These launch only with `launch` as their first word.
WITH_SUBCOMMAND = frozenset({"accelerate", "accelerate.commands.accelerate_cli"})
