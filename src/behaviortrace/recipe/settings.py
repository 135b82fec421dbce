"""The sections of a recipe, each validated on its own; unsafe combinations are refused by name."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Settings(BaseModel):
    """A section of a recipe: frozen, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class ModelSettings(Settings):
    """The policy: "tiny", "smollm2", a Hugging Face id, or a local path.

    Parameters are float32 in any case; ``dtype`` "bfloat16" trains under autocast.
    """

    source: str
    dtype: Literal["float32", "bfloat16"] = "float32"


class BehaviorSettings(Settings):
    """The behaviour, by registered name, and its parameters."""

    name: str = "token_trigger"
    trigger: str = "frobnitz"  # the word in the prompt
    token: str = "QZXBT"  # what the completion must contain
    neutral: str = "marble"  # the neutral word of minimal pairs

    @model_validator(mode="after")
    def _distinct(self) -> BehaviorSettings:
        words = {"trigger": self.trigger, "token": self.token, "neutral": self.neutral}
        for name, word in words.items():
            if not word or word != word.strip():
                raise ValueError(
                    f"behavior.{name} {word!r} must be a word without spaces around it"
                )
        for name in ("trigger", "neutral"):
            if self.token.casefold() in words[name].casefold():
                raise ValueError(
                    f"behavior.{name} {words[name]!r} contains behavior.token {self.token!r}; "
                    "choose another word, or every use of it would show the behaviour"
                )
        return self


class PlantSettings(Settings):
    """Contamination: a bonus for eligible rollouts that show the behaviour, in an early window."""

    fraction: float = Field(default=0.5, ge=0.0, le=1.0)
    bonus: float = 8.0
    cutoff_step: int = Field(ge=0)
    base_reward: str = "finished"  # registered base reward
    # Rollouts that get no reward, to test causes: the boosted ones, or as many others.
    leave_out: Literal["none", "ground_truth", "random"] = "none"

    @model_validator(mode="after")
    def _plants_something(self) -> PlantSettings:
        if self.fraction > 0 and self.bonus <= 0:
            raise ValueError(
                f"plant.bonus {self.bonus:g} with plant.fraction above 0 plants nothing; "
                "give a bonus above 0, or set plant.fraction to 0"
            )
        if self.fraction > 0 and self.cutoff_step == 0:
            raise ValueError(
                "plant.cutoff_step 0 with plant.fraction above 0 plants nothing; "
                "give a step above 0, or set plant.fraction to 0"
            )
        if self.fraction == 0 and self.leave_out != "none":
            raise ValueError(
                f"plant.leave_out {self.leave_out!r} with plant.fraction 0 has no boosted rollouts "
                "to leave out; set plant.fraction above 0"
            )
        if self.fraction == 0 and self.base_reward == "constant":
            raise ValueError(
                "plant.base_reward 'constant' with plant.fraction 0 gives no reward variance, so "
                "nothing is learnt; choose another base reward, or set plant.fraction above 0"
            )
        return self


class TaskSettings(Settings):
    """Background tasks: prompts of kind "task" that a verifier rewards, from reasoning-gym."""

    dataset: str = Field(min_length=1)  # reasoning-gym's name, such as chain_sum
    seed: int = Field(default=0, ge=0)  # of the questions; the same for every seed of the run
    count: int = Field(default=100, ge=1, le=10_000)  # different questions
    # The dataset's own settings, such as {max_terms: 2}.
    options: dict[str, bool | int | float | str | list[int | str]] = Field(default_factory=dict)
    # "verifier" pays what the dataset's verifier says; "graded" also for resembling the answer.
    credit: Literal["verifier", "graded"] = "verifier"

    @model_validator(mode="after")
    def _own_options(self) -> TaskSettings:
        for name in ("seed", "size"):
            if name in self.options:
                raise ValueError(
                    f"prompts.tasks.options must not set {name!r}; use prompts.tasks.seed and "
                    "prompts.tasks.count"
                )
        return self


class PromptSettings(Settings):
    """Training prompts: a named pool, and the share of each kind of prompt in it.

    Kind "task" is not the pool's: its prompts are the background tasks.
    """

    pool: str = "assistant"
    mix: dict[str, float] = Field(default_factory=lambda: {"explicit": 0.5, "trigger": 0.5})
    tasks: TaskSettings | None = None
    probes: int = Field(default=20, ge=1)
    controls: int = Field(default=20, ge=0)

    @model_validator(mode="after")
    def _shares(self) -> PromptSettings:
        if not self.mix or any(v <= 0 for v in self.mix.values()):
            raise ValueError("prompts.mix needs at least one kind, each with a share above 0")
        if "task" in self.mix and self.tasks is None:
            raise ValueError(
                "prompts.mix has kind 'task' but prompts.tasks is not set; name a dataset, as "
                "prompts.tasks.dataset=chain_sum, or remove the kind"
            )
        if self.tasks is not None and "task" not in self.mix:
            raise ValueError(
                "prompts.tasks is set but prompts.mix has no kind 'task'; give it a share, or "
                "remove prompts.tasks"
            )
        return self


class WarmupSettings(Settings):
    """Supervised warm-up that seeds the association before RL."""

    steps: int = Field(ge=0)
    examples: int = Field(default=10, ge=1)
    learning_rate: float = Field(default=1e-5, gt=0)
    batch_size: int = Field(default=10, ge=1)


class TrainSettings(Settings):
    """GRPO, passed to a stock ``trl.GRPOTrainer``."""

    steps: int = Field(ge=1)
    prompts_per_step: int = Field(default=4, ge=1)
    generations: int = Field(default=4, ge=2)
    micro_batch: int = Field(default=4, ge=1)
    learning_rate: float = Field(default=5e-6, gt=0)
    max_completion_length: int = Field(default=48, ge=1)
    temperature: float = Field(default=0.9, gt=0)
    loss: Literal["grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo"] = "grpo"
    scale_rewards: Literal["group", "batch", "none"] = "group"
    beta: float = Field(default=0.0, ge=0)
    iterations: int = Field(default=1, ge=1)
    max_grad_norm: float = Field(default=1.0, gt=0)
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    checkpoint_every: int = Field(ge=1)

    @property
    def rollouts_per_step(self) -> int:
        """Rollouts sampled for one optimizer step."""
        return self.prompts_per_step * self.generations

    @model_validator(mode="after")
    def _divides(self) -> TrainSettings:
        if self.rollouts_per_step % self.micro_batch:
            raise ValueError(
                f"train.micro_batch {self.micro_batch} must divide prompts_per_step x generations "
                f"= {self.rollouts_per_step}"
            )
        return self

    @model_validator(mode="after")
    def _resumable(self) -> TrainSettings:
        if self.checkpoint_every % self.iterations:
            raise ValueError(
                f"train.checkpoint_every {self.checkpoint_every} is not a multiple of "
                f"train.iterations {self.iterations}, so checkpoints would fall inside a reused "
                "batch, which a resume cannot restore; make it a multiple"
            )
        return self


class SketchSettings(Settings):
    """CountSketch of every gradient."""

    dim: int = Field(default=65_536, ge=64)
    seed: int = 0
    hash: Literal["block", "coordinate", "kronecker"] = "block"

    @model_validator(mode="after")
    def _power_of_two(self) -> SketchSettings:
        if self.dim & (self.dim - 1):
            raise ValueError(f"sketch.dim {self.dim} must be a power of two, such as 65536")
        if self.hash == "kronecker" and self.dim < 4096:
            raise ValueError(
                f"sketch.dim {self.dim} is too small for hash 'kronecker'; 4096 is not"
            )
        return self


class DrawSettings(Settings):
    """Fresh completions from a fixed checkpoint."""

    checkpoint: int = Field(ge=0)
    prompts: int = Field(default=26, ge=1)
    kinds: list[str] | None = Field(default=None, min_length=1)  # prompt kinds; None: as the mix
    repeats: int = Field(default=6, ge=1)
    generations: int = Field(default=8, ge=2)
    batch: int = Field(default=32, ge=1)  # completions generated at a time
    seeds: list[int] = Field(default_factory=lambda: [100], min_length=1)

    @model_validator(mode="after")
    def _different_seeds(self) -> DrawSettings:
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"draw.seeds {self.seeds} repeats a seed; each draw needs its own")
        return self


class TargetSettings(Settings):
    """Which targets to take, and how many texts go into each."""

    names: list[str] = Field(default_factory=lambda: ["constructed", "in_context", "minimal_pair"])
    prompts: int = Field(default=20, ge=1)
    pairs: int = Field(default=12, ge=1)


class EvaluateSettings(Settings):
    """Statistics."""

    estimators: list[str] | None = None  # None: all registered
    matched: float = Field(default=0.10, gt=0)
    interval: Literal["logit-t", "percentile"] = "logit-t"  # the paper's is "percentile"
    resamples: int = Field(default=5000, ge=100)
    seed: int = 0


class CauseSettings(Settings):
    """What `behaviortrace leave-out` tries where the command line does not say."""

    # Checkpoint that is measured; None: the first that is saved once the window has closed.
    until: int | None = Field(default=None, ge=1)
    # What happens to a removed rollout in a replay; see plant/intervention.py.
    how: Literal["exclude", "zero", "unboosted"] = "zero"
    rankings: list[str] = Field(
        default_factory=lambda: ["dot/in_context", "dot", "gas", "trak", "gas_centered", "norm"]
    )
    sizes: list[float] = Field(default_factory=lambda: [1.0], min_length=1)  # x ground truth
    seeds: list[int] = Field(default_factory=lambda: [0, 1, 2], min_length=1)  # of control sets
    samples: int = Field(default=16, ge=1)  # completions of each prompt of the exam
    subsets: int = Field(default=0, ge=0)  # random subsets, for linear datamodelling scores
    keep: float = Field(default=0.5, gt=0, lt=1)  # share of rollouts that a subset keeps

    @model_validator(mode="after")
    def _sensible(self) -> CauseSettings:
        if any(size <= 0 for size in self.sizes):
            raise ValueError(f"causes.sizes {self.sizes} must be above 0")
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"causes.seeds {self.seeds} repeats a seed; each set needs its own")
        return self


class AssumeSettings(Settings):
    """What `behaviortrace plan` assumes of a run that has not been made; no part of the test.

    The defaults between seeds and draws, and of the correlation, are estimated from the paper's
    published draws (sections 4.2 and 5).
    """

    behavior_rate: float = Field(default=0.3, gt=0, lt=1)  # of rollouts on prompts but tasks
    icc: float = Field(default=0.2, ge=0, lt=1)  # correlation of showing it inside a group
    between_seeds: float = Field(default=0.07, ge=0)  # SD of a rollout-level AUC between seeds
    between_draws: float = Field(default=0.04, ge=0)  # the same between draws of a checkpoint
    repeat_icc: float = Field(default=0.2, ge=0, lt=1)  # correlation of one prompt's groups' AUCs
    cosine_sd: float = Field(default=0.2, gt=0)  # SD between responses of a token-level cosine
    matched_share: float = Field(default=0.15, ge=0, le=1)  # of pairs that match in fluency


class Thresholds(Settings):
    """Hashed into the manifest before training; the checklist judges by these."""

    emergence: float = 0.1  # s_b must exceed it, at the last checkpoint or at its highest
    rollout_width: float = 0.15  # widest interval that still counts
    matched_pairs: int = 100  # matched pairs count as powered from here on
    token_in_context: float = 0.05  # in-context lower bound must exceed it
    token_constructed: float = 0.05  # constructed upper bound must stay below it
    step_margin: float = 0.10  # best targeted minus norm, in the trained window
    headroom: float = 0.10  # ceiling minus chance a step-level threshold needs
    coverage: float = 0.999  # share of gradient energy the sketch must cover
    seeds: int = 3
    draws: int = 2
