"""Train converted models in two processes, as the training loop does, and in one, as torch does.

python -m tests.convert.parallel: prints, for DDP and FSDP, the largest difference of any weight.
Run as a script, so that its processes are forked from one that has run nothing.
"""

import json
import os
import socket

import torch
from torch.distributed.fsdp import FSDPModule

import pidformer as pf
from pidformer.convert.mark import unmarked
from pidformer.runs.recipe import TrainRecipe
from pidformer.training.engine import Engine
from tests.convert.families import timm_model
from tests.convert.hugging_face import batch, build

GAINS = pf.PIDGains(p=0.4, i=0.2, d=0.1, beta=0.8)


def vit():
    model = pf.convert(timm_model("vit", depth=3), GAINS, learn_gains=True).train()
    model.set_grad_checkpointing(True)
    x = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    return model, x, lambda model, x: model(x)


def llama():
    model = pf.convert(build("llama"), GAINS, learn_gains=True).train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    return model, batch("llama", 4)["input_ids"], lambda model, x: model(x, use_cache=False).logits


MODELS = {"vit": vit, "llama": llama}


def steps(model, x, logits, optimizer, backward):
    for _ in range(3):
        backward(logits(model, x).square().mean())
        optimizer.step()
        optimizer.zero_grad()


def optimizer_of(model):
    return torch.optim.SGD(model.parameters(), lr=0.2)


def goes_back(engine, wrapped, optimizer, found):
    """Whether a checkpoint is put back, and one from before models had a mark."""
    held = [found]
    torch.distributed.broadcast_object_list(held)
    (kept,) = held
    older = kept | {"model": unmarked(kept["model"])}
    for checkpoint in (kept, older):
        with torch.no_grad():
            for parameter in wrapped.parameters():
                parameter.mul_(0.5)
        engine.restore(wrapped, optimizer, checkpoint)
        again = engine.capture(wrapped, optimizer)["model"]
        if engine.is_main and not all(torch.equal(again[k], v) for k, v in kept["model"].items()):
            return False
    return True


def difference(name, parallel):
    """Between the weights of both ways, on the main process, and how far they moved."""
    model, x, logits = MODELS[name]()
    engine = Engine(TrainRecipe(parallel=parallel), device="cpu")
    assert engine.place.world_size == 2
    wrapped, optimizer = engine.prepare(model, optimizer_of(model))
    sharded = sum(isinstance(module, FSDPModule) for module in wrapped.modules())
    share = x.chunk(2)[engine.place.rank]
    steps(wrapped, share, logits, optimizer, engine.backward)
    captured = engine.capture(wrapped, optimizer)
    found, is_back = captured["model"], goes_back(engine, wrapped, optimizer, captured)
    alone, x, logits = MODELS[name]()
    start = {key: value.clone() for key, value in alone.state_dict().items()}
    steps(alone, x, logits, optimizer_of(alone), lambda loss: loss.backward())
    wanted = alone.state_dict()
    if not engine.is_main:
        return None
    assert found.keys() == wanted.keys() and any("gains" in key for key in found)
    far = max(float((found[key] - wanted[key]).abs().max()) for key in wanted)
    moved = min(float((start[k] - wanted[k]).abs().max()) for k in wanted if "gains" in k)
    return {"difference": far, "gains moved": moved, "sharded": sharded, "is back": is_back}


def process(rank, port, parallel):
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    found = {name: difference(name, parallel) for name in MODELS}
    if rank == 0:
        print(json.dumps({parallel: found}), flush=True)


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


if __name__ == "__main__":
    for parallel in ("ddp", "fsdp"):
        torch.multiprocessing.start_processes(
            process, args=(free_port(), parallel), nprocs=2, start_method="fork"
        )
