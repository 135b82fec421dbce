"""Other libraries' captures of the same rollouts: for the benchmark alone, never used elsewhere."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import nn

from behaviortrace.bench.workload import Workload
from behaviortrace.capture.batch import TokenBatch
from behaviortrace.capture.layout import Layout
from behaviortrace.capture.objective import plain_loss

WIDTH = 16
"""Both peers keep 16 x 16 numbers a layer and rollout: near what a sketch of 65,536 keeps."""


class Peer(ABC):
    """Forward and backward with another library's hooks on the model.

    The model runs as the library expects it: whole logits, no fused head, the loss the sum over
    rollouts of the plain objective, so that per-rollout gradients are plain ones.

    Args:
        work: what to run on.

    Attributes:
        sketches: (rollouts, numbers) float32 that the last run kept.
        covered: names of the parameters whose gradient it looks at.

    Raises:
        ImportError: the library, or something it needs, is not installed.
    """

    def __init__(self, work: Workload) -> None:
        self.work = work
        self.sketches = np.zeros((0, 0), np.float32)
        self.covered: set[str] = set()

    def __call__(self) -> None:
        """Run the arm once."""
        found = []
        self.work.model.zero_grad(set_to_none=False)
        with self.collecting():
            for batch, _ in self.work.batches():
                _loss(self.work.model, batch).backward()
                parts = [part.reshape(len(batch.ids), -1).float() for part in self.take()]
                found.append(torch.cat(parts, 1).cpu().numpy())
        self.sketches = np.concatenate(found)

    @abstractmethod
    def collecting(self) -> AbstractContextManager[Any]:
        """While it lasts, gradients are collected."""

    @abstractmethod
    def take(self) -> list[torch.Tensor]:
        """What was collected in the last backward, (rollouts, ...) a layer, in a fixed order."""


class DattriLLM(Peer):
    """dattri-llm: every layer's gradient projected to 16 x 16 numbers, norms to as many.

    Its own defaults leave out norms of Hugging Face models, which it does not know; they are
    declared to it here, as its manual shows, and every layer has projections of its own.
    """

    def __init__(self, work: Workload) -> None:
        super().__init__(work)
        from dattri_llm import REGISTER_ALL, CaptureCallback, HookManager, HookManagerConfig

        norms = {
            name: module
            for name, module in work.model.named_modules()
            if "Norm" in type(module).__name__ and not isinstance(module, nn.LayerNorm)
        }
        named = list(work.model.named_modules())
        projections = {
            name: _projection(2 * i, WIDTH) for i, (name, _) in enumerate(named) if name
        } | {
            name: {**_projection(2 * i, WIDTH**2), "style": "dense"}
            for i, (name, module) in enumerate(named)
            if name in norms or isinstance(module, nn.LayerNorm)
        }
        config = HookManagerConfig(
            linear_io=REGISTER_ALL,
            hook_types=dict.fromkeys(norms, "linear_io"),
            layer_types=dict.fromkeys(norms, "nn.RMSNorm"),
            module_kwargs={
                name: {
                    "has_bias": False,
                    "normalized_shape": tuple(module.weight.shape),
                    "eps": float(getattr(module, "variance_epsilon", 1e-6)),
                }
                for name, module in norms.items()
            },
            projection_kwargs=projections,
            projector=_rademacher,
            capture_style="materialized",
        )
        self.record = CaptureCallback()
        self.manager = HookManager(work.model, config=config, callbacks=[self.record])
        self.covered = _weights(work.model, self.manager.layer_names)
        self.manager.remove()

    def prepare(self) -> None:
        """Register the hooks and let it draw its projections, as is done once a training."""
        self.manager.register()
        (batch, _), *_ = self.work.batches(1)
        with self.manager.collect():
            _loss(self.work.model, batch).backward()

    def finish(self) -> None:
        """Remove the hooks."""
        self.manager.remove()

    def collecting(self) -> AbstractContextManager[Any]:
        """See :meth:`Peer.collecting`."""
        manager: AbstractContextManager[Any] = self.manager.collect()
        return manager

    def take(self) -> list[torch.Tensor]:
        """See :meth:`Peer.take`."""
        record, self.record.record = self.record.record, None
        return [record.gradient.data[name] for name in sorted(record.gradient.data)]


class Bergson(Peer):
    """bergson: the linear layers of the backbone, projected to 16 x 16 numbers each.

    As its training callback does it: neither the head, the embedding nor norms are looked at.
    """

    def __init__(self, work: Workload) -> None:
        super().__init__(work)
        from bergson.collector.gradient_collectors import StreamingGradientCollector
        from bergson.gradients import GradientProcessor

        backbone: Any = work.model.base_model
        self.collector = StreamingGradientCollector(
            model=backbone,
            processor=GradientProcessor(projection_dim=WIDTH),
            dtype=torch.float32,
        )
        self.covered = _weights(work.model, self.collector.target_info, backbone)

    def collecting(self) -> AbstractContextManager[Any]:
        """See :meth:`Peer.collecting`."""
        collector: AbstractContextManager[Any] = self.collector
        return collector

    def take(self) -> list[torch.Tensor]:
        """See :meth:`Peer.take`."""
        found = [self.collector.mod_grads[name] for name in sorted(self.collector.mod_grads)]
        self.collector.mod_grads.clear()
        return found


PEERS: dict[str, Callable[[Workload], Peer]] = {"dattri-llm": DattriLLM, "bergson": Bergson}


def peers(work: Workload) -> tuple[dict[str, Peer], dict[str, str]]:
    """The arms of the peers that are installed, and for each other one why it is left out."""
    found: dict[str, Peer] = {}
    missing: dict[str, str] = {}
    for name, make in PEERS.items():
        try:
            found[name] = make(work)
        except ImportError as error:
            missing[name] = f"{name} is left out ({error}); pip install 'behaviortrace[bench]'"
    return found, missing


def _loss(model: nn.Module, batch: TokenBatch) -> torch.Tensor:
    """Sum over rollouts of the plain objective, from whole logits."""
    outputs = model(
        input_ids=batch.ids,
        attention_mask=batch.attention,
        position_ids=batch.position_ids,
        logits_to_keep=batch.completion + 1,
    )
    logps = torch.log_softmax(outputs.logits[:, :-1].float(), -1)
    chosen = batch.ids[:, -batch.completion :, None]
    return plain_loss(logps.gather(2, chosen)[..., 0], batch.mask).sum()


def _weights(model: nn.Module, names: Any, root: nn.Module | None = None) -> set[str]:
    """Names, as the layout has them, of the trainable parameters of modules."""
    layout = Layout(model)
    modules = [(root or model).get_submodule(name) for name in names]
    slots = [layout.slot(p) for module in modules for p in module.parameters(recurse=False)]
    return {slot.name for slot in slots if slot is not None}


def _projection(seed: int, width: int) -> dict[str, Any]:
    return {"proj_dim": width, "proj_seed": seed}


def _rademacher(
    feature: torch.Tensor, _: int, *, proj_dim: int, proj_seed: int, **rest: Any
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Random signs over the root of the width: a projector in the form dattri-llm asks for."""
    generator = torch.Generator().manual_seed(proj_seed)
    signs = torch.randint(0, 2, (feature.shape[1], proj_dim), generator=generator)
    matrix = ((2.0 * signs - 1) / proj_dim**0.5).to(feature.device)
    return lambda x: x @ matrix
