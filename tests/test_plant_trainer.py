"""The contaminated reward inside a stock TRL trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

from behaviortrace.plant import base_rewards, behaviors
from behaviortrace.plant.contamination import LOGGED_COLUMNS, ContaminatedReward, eligible
from behaviortrace.recipe import BehaviorSettings, PlantSettings

WORDS = ["<pad>", "<end>", "QZXBT", "the", "fox", "runs", "home", "frobnitz"]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    core = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="the"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", eos_token="<end>", padding_side="left"
    )


def policy() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(WORDS),
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            eos_token_id=1,
            bos_token_id=None,
            pad_token_id=0,
        )
    )


class Recording(GRPOTrainer):
    """Keeps what TRL logs of every batch; changes nothing else."""

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        mode = "train" if self.model.training else "eval"
        output = super()._generate_and_score_completions(inputs)
        n = len(output["advantages"])
        extra = {name: list(values)[-n:] for name, values in self._logs["extra"].items()}
        extra["advantage"] = output["advantages"].tolist()
        extra["completion"] = list(self._logs["completion"])[-n:]
        extra["reward"] = list(self._logs["rewards"]["contaminated_reward"])[-n:]
        self.seen.append((mode, self.state.global_step, extra))
        return output


def train(tmp_path: Path, tokenizer: Any, **plant: Any) -> list[tuple[str, int, dict[str, Any]]]:
    settings = PlantSettings.model_validate({"bonus": 8.0, "cutoff_step": 2, **plant})
    trainer: Recording
    reward = ContaminatedReward(
        behaviors.build(BehaviorSettings()),
        base_rewards.get("constant"),
        settings,
        0,
        training=lambda: trainer.model.training,
        eos_ids=lambda: trainer.eos_token_ids,
    )
    rows = [{"prompt": "frobnitz the fox", "prompt_kind": "trigger"}] * 8
    trainer = Recording(
        model=policy(),
        reward_funcs=[reward],
        args=GRPOConfig(
            output_dir=str(tmp_path),
            max_steps=3,
            per_device_train_batch_size=4,
            per_device_eval_batch_size=8,
            gradient_accumulation_steps=4,
            num_generations=4,
            max_completion_length=6,
            bf16=False,
            use_cpu=True,
            eval_strategy="steps",
            eval_steps=1,
            save_strategy="no",
            report_to="none",
            logging_steps=1,
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_list(rows),
        eval_dataset=Dataset.from_list(rows[:2]),
        processing_class=tokenizer,
    )
    trainer.seen = []
    trainer.train()
    return trainer.seen


def test_a_stock_trainer_pays_and_logs_the_bonus(tmp_path: Path, tokenizer: Any) -> None:
    seen = train(tmp_path, tokenizer)
    assert [step for mode, step, _ in seen if mode == "train"] == [0, 1, 2]
    assert sum(sum(extra["boosted"]) for _, _, extra in seen) > 0
    assert any(mode == "eval" for mode, _, _ in seen)
    for mode, step, extra in seen:
        window = mode == "train" and step < 2
        n = len(extra["completion"])
        assert all(len(extra[name]) == n for name in LOGGED_COLUMNS)
        assert extra["prompt_kind"] == ["trigger"] * n
        assert extra["eligible"] == [window and eligible(0, step, i, 0.5) for i in range(n)]
        assert extra["behavior"] == ["QZXBT" in text for text in extra["completion"]]
        assert extra["reward"] == [8.0 * hit for hit in extra["boosted"]]


def test_a_left_out_rollout_has_no_part_in_training(tmp_path: Path, tokenizer: Any) -> None:
    seen = train(tmp_path, tokenizer, leave_out="ground_truth")
    rows = [
        pair
        for mode, _, extra in seen
        if mode == "train"
        for pair in zip(extra["left_out"], extra["advantage"], strict=True)
    ]
    assert any(out for out, _ in rows)
    # The base reward is constant, so without the boosted rollouts no group has any variance.
    assert all(advantage == 0.0 for _, advantage in rows)
