"""The distributed engine: all use of accelerate and torch.distributed, and compile options."""

import gc
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.utils import DistributedDataParallelKwargs
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict as states
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, init_device_mesh
from torch.optim import Optimizer

from pidformer.convert.mark import marks, unmarked
from pidformer.devices import as_device, launched_device
from pidformer.errors import InputError
from pidformer.runs.recipe import TrainRecipe
from pidformer.training.tasks import Place

BLOCK = "PIDBlock"
_ON_MAIN = states.StateDictOptions(full_state_dict=True, cpu_offload=True)
_EVERYWHERE = states.StateDictOptions(full_state_dict=True)
_SLOW = "triton.mix_order_reduction"
"""Sums over tokens and over features in one kernel, as for a layer norm's gradients. Without it a
step of DeiT-tiny at 64 pixels takes 8.4 ms instead of 8.9 (H200, torch 2.11)."""


class Engine:
    """One process or many, with the same code; started alone, by torchrun or accelerate launch."""

    def __init__(
        self, recipe: TrainRecipe, device: str = "auto", *, compile_on_cpu: bool = False
    ) -> None:
        chosen = (launched_device if "LOCAL_RANK" in os.environ else as_device)(device)
        if chosen.type == "mps":
            raise InputError("training takes the device auto, cpu or cuda (or cuda:1), got 'mps'")
        is_cpu = chosen.type == "cpu"
        processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        if chosen.type == "cuda" and processes > (gpus := torch.cuda.device_count()):
            raise InputError(
                f"training takes a GPU for each process, and here are {processes} processes and "
                f"{gpus} GPU(s): start {gpus}, or use --device cpu"
            )
        if recipe.precision == "fp16" and is_cpu:
            raise InputError("train.precision=fp16 needs a CUDA device; use bf16 or fp32 here")
        is_numbered = chosen.type == "cuda" and chosen.index is not None
        if is_numbered:
            torch.cuda.set_device(chosen)  # accelerate takes the current one
        sharded = (
            FullyShardedDataParallelPlugin(
                fsdp_version=2,
                auto_wrap_policy="transformer_based_wrap",
                transformer_cls_names_to_wrap=[BLOCK],
                reshard_after_forward=True,
            )
            if recipe.parallel == "fsdp"
            else None
        )
        # bf16 is autocast here, so that accelerate leaves the forward, and its compiling, alone
        self._accelerator = Accelerator(
            cpu=is_cpu,
            mixed_precision="fp16" if recipe.precision == "fp16" else "no",
            fsdp_plugin=sharded,
            kwargs_handlers=[DistributedDataParallelKwargs(gradient_as_bucket_view=True)],
        )
        self._sharded = sharded
        self._precision = recipe.precision
        # a recipe's mode is for CUDA devices: a CPU would compile for minutes, and gain little
        self.is_compiled = recipe.compile != "none" and (compile_on_cpu or not is_cpu)
        self.has_graphs = recipe.compile == "reduce-overhead" and not is_cpu
        accelerator = self._accelerator
        self.place = Place(
            accelerator.process_index,
            accelerator.num_processes,
            chosen if is_numbered else accelerator.device,
        )
        self.is_main = accelerator.is_main_process

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        if self._sharded is None:
            return self._accelerator.prepare(model, optimizer)
        # a Hugging Face model names its own blocks
        named = list(getattr(model, "_no_split_modules", None) or [BLOCK])
        if self.place.device.type == "cpu":  # where accelerate would leave a model whole
            if self.place.world_size > 1:
                _shard(model, optimizer, named)
            return model, self._accelerator.prepare(optimizer)
        self._sharded.transformer_cls_names_to_wrap = named
        return self._accelerator.prepare(model, optimizer)

    def autocast(self) -> AbstractContextManager[Any]:
        if self._precision != "bf16":
            return nullcontext()
        return torch.autocast(self.place.device.type, torch.bfloat16)

    def backward(self, loss: Tensor) -> None:
        self._accelerator.backward(loss)

    def accumulating(self, model: nn.Module, is_last: bool) -> AbstractContextManager[Any]:
        """Gradients of all but the last part of a batch stay with their process."""
        return nullcontext() if is_last else self._accelerator.no_sync(model)

    def keep_gradients(self, model: nn.Module) -> None:
        """Take the gradients out of a CUDA graph's memory, over which its next replay writes.

        What autograd adds to them later stays in the copy.
        """
        for parameter in model.parameters() if self.has_graphs else ():
            if parameter.grad is not None:
                parameter.grad = parameter.grad.clone()

    def clip(self, model: nn.Module, limit: float | None) -> Tensor:
        """Clip the whole gradient to a norm of at most `limit`; its norm before."""
        norm = self._accelerator.clip_grad_norm_(model.parameters(), limit or float("inf"))
        if isinstance(norm, DTensor):
            return norm.full_tensor()
        return norm if isinstance(norm, Tensor) else torch.tensor(norm)

    def skip(self) -> None:
        """Leave a step out after `clip`, of which the scaler of fp16 has to be told."""
        if self._accelerator.scaler is not None:
            self._accelerator.scaler.update()

    def sum(self, values: Tensor) -> Tensor:
        """Summed over processes."""
        return self._accelerator.reduce(values, "sum")

    def agree(self, wish: bool) -> bool:
        """Whether any process wishes it; all must ask."""
        if self.place.world_size == 1:
            return wish
        flag = torch.tensor([float(wish)], device=self.place.device)
        return bool(self.sum(flag).item() > 0)

    def wait(self) -> None:
        self._accelerator.wait_for_everyone()

    def capture(self, model: nn.Module, optimizer: Optimizer) -> dict[str, dict[str, Tensor]]:
        """Model and optimiser state as flat tensors: whole on the main process, empty elsewhere."""
        weights: Any
        state: Any
        weights, state = states.get_state_dict(model, _plain(optimizer), options=_ON_MAIN)
        inner = self._accelerator.unwrap_model(model)
        every = {name for name, _ in inner.named_parameters(remove_duplicate=False)}
        for name in every - {name for name, _ in inner.named_parameters()}:  # of tied weights
            weights.pop(name, None)
        flat = {
            f"{parameter}/{name}": value
            for parameter, entry in state.get("state", {}).items()
            for name, value in entry.items()
        }
        # On the CPU these are the live tensors, which the next step (or a swap of weights) moves.
        return {
            group: {name: value.clone() for name, value in tensors.items()}
            for group, tensors in (("model", weights), ("optimizer", flat))
        }

    def restore(
        self, model: nn.Module, optimizer: Optimizer, tensors: Mapping[str, Mapping[str, Tensor]]
    ) -> None:
        """Put back what `capture` gave."""
        inner: Any = self._accelerator.unwrap_model(model)
        update = getattr(inner, "up_to_date", dict)
        tensors = {group: update(held) for group, held in tensors.items()}
        # the recipe names the gains; a checkpoint from before there was a mark has none
        tensors["model"] = unmarked(tensors["model"]) | marks(inner.state_dict())
        if not tensors["optimizer"]:  # SGD without momentum keeps nothing
            states.set_model_state_dict(model, dict(tensors["model"]), options=_EVERYWHERE)
            return
        _, state = states.get_state_dict(model, _plain(optimizer), options=_EVERYWHERE)
        entries: dict[str, Any] = {}
        for key, value in tensors["optimizer"].items():
            parameter, _, name = key.rpartition("/")
            entries.setdefault(parameter, {})[name] = value
        states.set_state_dict(
            model,
            _plain(optimizer),
            model_state_dict=dict(tensors["model"]),
            optim_state_dict={"state": entries, "param_groups": state["param_groups"]},
            options=_EVERYWHERE,
        )

    def scaler_state(self) -> dict[str, Any] | None:
        scaler = self._accelerator.scaler
        return scaler.state_dict() if scaler is not None else None

    def restore_scaler(self, state: dict[str, Any] | None) -> None:
        if state and self._accelerator.scaler is not None:
            self._accelerator.scaler.load_state_dict(state)

    @contextmanager
    def evaluating(self, model: nn.Module) -> Iterator[None]:
        """Evaluation mode, no gradients, autocast, not compiled; training mode afterwards.

        An evaluation is too short to pay for graphs of its own, one for each size of a last batch.
        A sharded model is whole in here, with the weights it had on entering: processes may have
        different numbers of batches, and one that gathers parameters alone would wait for ever.
        """
        model.eval()
        eager = torch.compiler.set_stance("force_eager") if self.is_compiled else nullcontext()
        try:
            with torch.no_grad(), self.autocast(), eager, _whole(model):
                yield
        finally:
            model.train()

    def close(self) -> None:
        """End training, and clear the compiler, which keeps graphs and the memory they hold.

        Gloo's threads end with the last reference to their group. One that outlives it into
        Python's own end can abort a process that has finished its work.
        """
        self._accelerator.free_memory()
        self._accelerator.end_training()
        gc.collect()
        if self.is_compiled:
            torch.compiler.reset()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # for those who share the GPU


def is_main_process() -> bool:
    """Whether this process is the one that speaks; also true when it is alone."""
    return os.environ.get("RANK", "0") == "0"


def _plain(optimizer: Any) -> Optimizer:
    """The optimiser inside accelerate's wrapper."""
    return getattr(optimizer, "optimizer", optimizer)


def _shard(model: nn.Module, optimizer: Optimizer, blocks: list[str]) -> None:
    """Shard a model's parameters over all processes, block by block, and tell its optimiser."""
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for module in list(model.modules()):
        if type(module).__name__ in blocks:
            fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)
    sharded = dict(model.named_parameters())
    for group in optimizer.param_groups:
        group["params"] = [sharded[names[id(parameter)]] for parameter in group["params"]]


@contextmanager
def _whole(model: nn.Module) -> Iterator[None]:
    """All parameters of a sharded model on every process; nothing for other models."""
    parts = [module for module in model.modules() if isinstance(module, FSDPModule)]
    for part in parts:
        part.set_reshard_after_forward(False, recurse=False)
        part.unshard()
    try:
        yield
    finally:
        for part in parts:
            part.reshard()
            part.set_reshard_after_forward(True, recurse=False)


def compile_options(mode: str) -> dict[str, Any]:
    """Inductor's options for a mode of `torch.compile`, without what slows training down."""
    from torch import _inductor  # seconds, which only those who compile should wait

    options: dict[str, Any] = _inductor.list_mode_options(mode)
    return options | ({_SLOW: False} if _SLOW in _inductor.list_options() else {})


def compile_seconds(model: nn.Module, device: torch.device) -> int:
    """About how long the first step compiles, by the number of blocks.

    Twelve blocks took 90 s on an H200 (torch 2.11), six took 119 s on two busy CPU cores (2.15).
    """
    rows = (nn.ModuleList, nn.Sequential)
    blocks = max((len(m) for m in model.modules() if isinstance(m, rows)), default=0)
    first, each = (30, 5) if device.type == "cuda" else (60, 10)
    return first + each * blocks
