"""The seam with TRL: what is relied upon, checked when a tracer attaches.

TRL changes every few weeks. These few names are all that the tracer touches; if one is missing or
behaves otherwise, attaching fails and says which, and training was not touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import trl
import trl.trainer.utils as trl_utils
from torch import nn
from trl.kernels import ChunkedLogProbFunction

from behaviortrace.capture.engine import RowGradients
from behaviortrace.capture.layout import Layout
from behaviortrace.capture.sinks import ExactSink
from behaviortrace.errors import BehaviorTraceError

ROW_KEY = "behaviortrace_row"
"""Key of the tensor that follows each rollout through TRL's shuffle and split."""

ROLLOUT_METHODS = ("_generate_and_score_completions", "_calculate_rewards", "_compute_loss")
"""What is wrapped of ``GRPOTrainer`` and ``RLOOTrainer``, beside the step."""

EXAMPLE_METHODS = ("compute_loss",)
"""What is wrapped of ``SFTTrainer``, beside the step."""

BATCH_KEYS = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "advantages")


def _refuse(what: str) -> BehaviorTraceError:
    return BehaviorTraceError(
        f"cannot attach to this trainer: {what} (TRL {trl.__version__}; tested with 1.16)"
    )


def check_trainer(trainer: Any, methods: Iterable[str]) -> None:
    """Refuse a trainer whose seam is not as expected.

    Args:
        trainer: the trainer.
        methods: what will be wrapped.

    Raises:
        BehaviorTraceError: the missing method or the unsupported setting, by name.
    """
    for name in methods:
        if not callable(getattr(trainer, name, None)):
            raise _refuse(
                f"{type(trainer).__name__} has no method {name!r}; use trl.GRPOTrainer, "
                "trl.RLOOTrainer or trl.SFTTrainer"
            )
    check_settings(trainer)
    for name in ("_ChunkedLogProbFunction", "_use_triton", "add_fused_lm_head"):
        if not hasattr(trl_utils, name):
            raise _refuse(f"trl.trainer.utils has no {name!r}; install trl 1.16")
    forward = getattr(_unwrapped(trainer).forward, "__name__", "")
    if "fused_lm_head" not in _free_names(_unwrapped(trainer)):
        raise _refuse(
            f"the model's forward {forward!r} lacks TRL's fused LM head; install trl 1.16"
        )
    check_head()


def check_settings(trainer: Any) -> None:
    """Refuse settings under which a row's gradient cannot be told from the others'.

    Raises:
        BehaviorTraceError: the setting, by name.
    """
    args, accelerator = trainer.args, trainer.accelerator
    if getattr(args, "use_liger_kernel", False):
        raise _refuse("use_liger_kernel=True replaces the loss; set it to False")
    if getattr(args, "torch_compile", False):
        raise _refuse("torch_compile=True hides the modules; set it to False")
    if getattr(trainer, "is_fsdp_enabled", False) or getattr(
        trainer, "is_deepspeed_enabled", False
    ):
        raise _refuse("FSDP and DeepSpeed shard gradients before rows can be told apart")
    if getattr(args, "n_gpu", 1) > 1:
        raise _refuse("nn.DataParallel splits the rows over GPUs; start one process a GPU instead")
    if accelerator.num_processes > 1 and not str(accelerator.distributed_type.value).startswith(
        "MULTI_"
    ):
        raise _refuse(
            f"distributed type {accelerator.distributed_type.value} does not average whole "
            "gradients over processes; use plain data parallelism"
        )
    if getattr(accelerator, "scaler", None) is not None:
        raise _refuse("fp16=True scales the loss by a changing factor; use bf16=True or fp32")


def check_batch(batch: dict[str, Any]) -> None:
    """Refuse a generation batch that lacks what the tracer reads."""
    for key in BATCH_KEYS:
        if key not in batch:
            raise _refuse(f"its generation batch has no {key!r}; install trl 1.16")


def _unwrapped(trainer: Any) -> nn.Module:
    return trainer.accelerator.unwrap_model(trainer.model)


def _free_names(model: nn.Module) -> set[str]:
    """Keyword names of TRL's patched forward, on the model or on the base of a PEFT model.

    Accelerate wraps a forward that trains in mixed precision, so wrappers are looked through.
    """
    names: set[str] = set()
    for module in (model, getattr(model, "get_base_model", lambda: model)()):
        function: Any = module.forward
        while function is not None:
            code = getattr(getattr(function, "__func__", function), "__code__", None)
            names |= set() if code is None else set(code.co_varnames)
            function = getattr(function, "__wrapped__", None)
    return names


def check_head() -> None:
    """Compare the row-wise LM head with TRL's own on a small random problem.

    Raises:
        BehaviorTraceError: gradients differ by more than 1e-4 relative.
    """
    generator = torch.Generator().manual_seed(0)

    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(13, 4, generator=generator))

    model = Head()
    hidden = torch.randn(6, 4, generator=generator)
    targets = torch.tensor([1, 5, 12, 0, 3, 7])
    upstream = torch.randn(6, generator=generator)
    rest = (None, targets, 0.7, 8, None, 1.0, ("log_probs", "entropy"))
    found = []
    try:
        for rows in (False, True):
            x = hidden.clone().requires_grad_(True)
            model.weight.grad = None
            if rows:
                sink = ExactSink(Layout(model))
                engine = RowGradients(model, sink, allow_uncovered=["weight"])
                with engine:
                    engine.arm(2, torch.ones(2, 3))
                    out = engine._apply_head(x, model.weight, *rest)
                    (out[0] * upstream + 0.1 * out[1]).sum().backward()
                    engine.disarm()
            else:
                out = ChunkedLogProbFunction.apply(x, model.weight, *rest)
                (out[0] * upstream + 0.1 * out[1]).sum().backward()
            found.append((x.grad, model.weight.grad))
    except (TypeError, RuntimeError, AttributeError, ValueError, KeyError, IndexError) as error:
        raise _refuse(f"its fused LM head is not as expected: {error}") from error
    for theirs, ours in zip(*found, strict=True):
        if theirs is None or ours is None or not torch.allclose(theirs, ours, 1e-4, 1e-5):
            raise _refuse("its fused LM head gives other gradients than expected; install trl 1.16")


@contextmanager
def overridden(target: Any, name: str, value: Any) -> Iterator[None]:
    """Set an instance attribute for a while."""
    had, kept = name in vars(target), vars(target).get(name)
    setattr(target, name, value)
    try:
        yield
    finally:
        if had:
            setattr(target, name, kept)
        else:
            delattr(target, name)
