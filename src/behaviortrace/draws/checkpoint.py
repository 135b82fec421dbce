"""A saved policy of a run, loaded once and ready to be sampled from and to be differentiated."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.recipe import Recipe

if TYPE_CHECKING:
    from behaviortrace.capture import CountSketch, Replay
    from behaviortrace.capture.slices import SliceSink
    from behaviortrace.run import Run
    from behaviortrace.train.generate import Sample

Loader = Callable[[Path], tuple[Any, Any]]
"""Checkpoint folder -> (model, tokenizer)."""

TokenIds = Sequence[int]


@dataclass(frozen=True)
class Policy:
    """The policy at a checkpoint.

    Attributes:
        model: causal language model in evaluation mode.
        tokenizer: its tokenizer.
        step: optimizer steps taken before the checkpoint.
        sketch: the run's CountSketch (a slice only where pitfall P3 is shown).
        temperature: of the log-probabilities, the one training sampled at.
        micro_batch: completions replayed at a time.
    """

    model: Any
    tokenizer: Any
    step: int
    sketch: CountSketch | SliceSink
    temperature: float
    micro_batch: int

    def gradients(
        self,
        rows: Sequence[tuple[TokenIds, TokenIds]],
        token_mask: Sequence[Sequence[bool]] | None = None,
    ) -> Replay:
        """Plain gradients of completions: of minus the mean log-probability of their tokens.

        Args:
            rows: n pairs of prompt ids and completion ids.
            token_mask: for each row the completion tokens that count; all where None.

        Returns:
            The replay: ``plain`` (n, dim) float32 sketches, ``norms`` and ``fluency`` (n,).
        """
        from behaviortrace.capture import replay

        return replay(
            self.model,
            [(list(prompt), list(completion)) for prompt, completion in rows],
            self.sketch,
            temperature=self.temperature,
            micro_batch=self.micro_batch,
            token_mask=None if token_mask is None else [list(mask) for mask in token_mask],
            pad_token_id=self.tokenizer.pad_token_id,
        )

    def sample(self, prompts: Sequence[str], n: int, recipe: Recipe, *, seed: int) -> list[Sample]:
        """``n`` completions of every prompt, sampled as in training.

        Args:
            prompts: user messages.
            n: completions a prompt.
            recipe: gives temperature, longest completion and batch.
            seed: of this sample alone.
        """
        from behaviortrace.train.generate import sample

        return sample(
            self.model,
            self.tokenizer,
            prompts,
            n,
            temperature=recipe.train.temperature,
            max_new_tokens=recipe.train.max_completion_length,
            seed=seed,
            batch=recipe.draw.batch,
        )


def derived_seed(*parts: object) -> int:
    """A seed in [0, 2**32) of its own for each sequence of parts, by hash."""
    text = ":".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big")


def open_policy(run: Run, step: int, loader: Loader | None = None) -> Policy:
    """Load the policy a run saved after ``step`` steps, with the run's own sketch.

    Args:
        run: a run with a recipe.
        step: of one of its complete checkpoints.
        loader: how to load a checkpoint folder; by default as any model source is loaded.

    Raises:
        BehaviorTraceError: no recipe, no such checkpoint, or it cannot be loaded.
    """
    recipe = need_recipe(run)
    folders = run.checkpoints()
    if step not in folders:
        run.refuse_copy("load a checkpoint")
        saved = ", ".join(map(str, sorted(folders))) or "none"
        raise BehaviorTraceError(
            f"{run.path} has no complete checkpoint of step {step} (saved: {saved}); finish "
            "training with --resume, or set draw.checkpoint to a saved step"
        )
    model, tokenizer = (loader or _default_loader(recipe))(folders[step])
    return Policy(
        model=model,
        tokenizer=tokenizer,
        step=step,
        sketch=run_sketch(run),
        temperature=recipe.train.temperature,
        micro_batch=recipe.train.micro_batch,
    )


def need_recipe(run: Run) -> Recipe:
    """The run's recipe.

    Raises:
        BehaviorTraceError: it has none.
    """
    if run.recipe is None:
        raise BehaviorTraceError(
            f"{run.path} has no recipe, which says what its behaviour and prompts are; make it "
            "with `behaviortrace run RECIPE`"
        )
    return run.recipe


def run_sketch(run: Run) -> CountSketch:
    """The sketch a run's gradients were taken with.

    Raises:
        BehaviorTraceError: neither the manifest nor a recipe says which.
    """
    from behaviortrace.capture import CountSketch

    spec = run.manifest.sketch
    if spec is None:
        settings = need_recipe(run).sketch
        return CountSketch(settings.dim, settings.seed, settings.hash)
    return CountSketch(int(spec["dim"]), int(spec["seed"]), spec["hash"])


def _default_loader(recipe: Recipe) -> Loader:
    from behaviortrace.train.policy import load_policy

    # Parameters are float32 in training too, also where it runs under bfloat16 autocast.
    return lambda folder: load_policy(folder, "float32", behavior=recipe.behavior)
