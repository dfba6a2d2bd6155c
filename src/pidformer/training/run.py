"""Run folders: start, continue, or refuse with the difference."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path

from pidformer.errors import InputError
from pidformer.files import check_links, is_temporary, locked
from pidformer.runs import folder
from pidformer.runs.recipe import Recipe, recipe_from
from pidformer.runs.twins import MOVES_NOTHING
from pidformer.runs.weights import check_initial
from pidformer.training.engine import Engine
from pidformer.training.language import Language
from pidformer.training.loop import Trainer
from pidformer.training.progress import TrainingProgress
from pidformer.training.recipe import difference
from pidformer.training.segmentation import Segmentation
from pidformer.training.tasks import Classification, Task

LOCK = ".lock"


def train(
    recipe: Recipe,
    out: str | Path,
    *,
    data: str | Path | None = None,
    device: str = "auto",
    is_shown: bool = True,
    compile_on_cpu: bool = False,
) -> dict[str, float]:
    """Train `recipe` in run folder `out`, resuming what is there; returns the final scores.

    A folder that holds another recipe is refused, with the difference shown. Raises
    `pidformer.interrupts.Interrupted` after a signal, with the run saved. `train.compile` is for
    CUDA devices, unless `compile_on_cpu`.
    """
    out = Path(out)
    task = build_task(recipe, data)
    engine = Engine(recipe.train, device, compile_on_cpu=compile_on_cpu)
    if engine.is_main:  # the others would see a folder that is just being made
        check_folder(out, recipe)
        _check_data(out, task)
    trainer = Trainer(recipe, task, engine, out)
    try:
        with prepared(out, recipe, task, data) if engine.is_main else nullcontext():
            engine.wait()
            shown = is_shown and engine.is_main
            with TrainingProgress(
                out.name, is_shown=shown, tensorboard=out / "tensorboard"
            ) as progress:
                if recipe.train.compile != "none" and not engine.is_compiled:
                    progress.tell(
                        "not compiled, as this is a CPU (train.compile="
                        f"{recipe.train.compile} on the command line insists)"
                    )
                return trainer.fit(progress)
    finally:
        del trainer  # whose model holds the process group
        engine.close()


def build_task(recipe: Recipe, data: str | Path | None) -> Task:
    """The task that a recipe names; the weights it starts from must be there, if it has some."""
    if recipe.model.init is not None:
        check_initial(recipe.model.init)
    kinds: dict[str, Callable[..., Task]] = {"segmentation": Segmentation, "language": Language}
    return kinds.get(recipe.task, Classification)(recipe, data)


def check_folder(out: Path, recipe: Recipe) -> None:
    """Refuse a folder that holds something else than a run of this recipe."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; --out names a folder")
    is_run = (out / "recipe.yaml").exists()
    held = [p.name for p in out.iterdir() if not is_temporary(p)] if out.exists() else []
    if not is_run and not set(held) <= {"tensorboard", LOCK}:
        raise InputError(f"{out} is not empty and not a run folder; choose another --out")
    check_links(out)
    if not is_run or not folder.has_progress(out):
        return  # ended before its first checkpoint: nothing to lose
    # with the defaults of keys that it did not have
    old = recipe_from(folder.read_recipe(out)).to_dict()
    lines = difference(old, recipe.to_dict())
    moved = [line for line in lines if not line.startswith(MOVES_NOTHING)]
    if moved:
        shown = "; ".join(moved[:5]) + (f"; and {len(moved) - 5} more" if len(moved) > 5 else "")
        raise InputError(
            f"{out} holds a run of another recipe ({shown}); choose another --out, or delete that "
            "folder to start anew"
        )


def _check_data(out: Path, task: Task) -> None:
    """Refuse to resume on data that need another model: other classes, another vocabulary."""
    if not folder.has_progress(out) or not (out / "model.json").exists():
        return
    held = folder.read_model_info(out)
    given = json.loads(json.dumps(dict(task.model_info())))
    lines = difference(held["build"], given["build"])
    for name, what in (("tokenizer", "words of the vocabulary"), ("classes", "names of classes")):
        if not lines and held.get(name) != given.get(name):
            lines = [f"the {what}"]
    if lines:
        raise InputError(
            f"{out} holds a run on other data ({'; '.join(lines)}); give the data it was begun "
            "with, or choose another --out"
        )


@contextmanager
def prepared(out: Path, recipe: Recipe, task: Task, data: str | Path | None) -> Iterator[None]:
    """The folder with its recipe, for this process alone as long as the block lasts.

    Made only now: a recipe that cannot be built leaves no folder behind. The system lets go of the
    lock when the process ends, however it ends.
    """
    with ExitStack() as stack:
        try:
            out.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(out / LOCK, waits=False))
        except BlockingIOError:
            raise InputError(
                f"another process is training in {out}; wait for it to end, or choose another --out"
            ) from None
        except OSError as error:
            raise InputError(
                f"cannot write to {out} ({error.strerror}); choose another --out"
            ) from None
        folder.write_recipe(out, recipe.to_dict())
        place = {} if data is None else {"data": str(Path(data).resolve())}
        folder.write_model_info(out, dict(task.model_info()) | place)
        yield
