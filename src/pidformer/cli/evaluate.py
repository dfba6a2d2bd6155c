"""`pidformer evaluate`: models under a suite of threats, side by side."""

from pathlib import Path
from typing import Any

import typer

from pidformer.cli.options import (
    Data,
    Device,
    Json,
    Models,
    OtherGains,
    Seed,
    command_line,
    print_json,
    tables,
)
from pidformer.errors import InputError, check_known
from pidformer.files import out_folder


def evaluate(
    models: Models,
    suite: str = "clean",
    data: Data = None,
    domain: str = "pixel",
    limit: int | None = None,
    curve: str | None = None,
    eps: str = "0:8:1",
    gains: OtherGains = None,
    ema: bool = False,
    views: str = "single",
    protocol: str = "sliding",
    split: str = "valid",
    precision: str = "fp32",
    batch_size: int | None = None,
    workers: int = 0,
    allow_missing: bool = False,
    out: Path = Path("evaluations"),
    seed: Seed = 0,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Accuracy with 95 % intervals, clean or under a suite of threats, models side by side.

    Runs that differ only in their seed are one column; the others are compared with the first
    column image by image. Every row is recorded in the run's results.jsonl as soon as it is there,
    and not measured again.

    Segmentation runs get mIoU, language models perplexity; their other suite is "robustness".
    Under torchrun or accelerate launch the processes share the work; the records stay the same.

    Example: pidformer evaluate runs/softmax runs/pid --suite quick --data DIR
    Example: pidformer evaluate timm:deit_tiny_patch16_224 --suite paper --data DIR --limit 1000
    Example: pidformer evaluate runs/softmax runs/pid --curve fgsm,pgd --eps 0:8:1 --data DIR
    Example: pidformer evaluate hf:FOLDER --data TEXTS --protocol strided
    Example: torchrun --nproc_per_node 8 -m pidformer evaluate runs/pid --suite paper --data DIR

    Options:
        --suite: clean, quick, paper, corruptions, ood, autoattack, digits, demo, study, study-spsa,
            study-paper, study-paper-spsa, or a YAML file of your own.
        --domain: Where attacks act: pixel (clipped to [0, 1]) or normalized (the model's own input,
            not clipped, as the paper's numbers imply).
        --limit: A sample of so many images, the same for every model. Language: the first tokens.
        --curve: Instead of a suite: accuracy over the budget of these, as fgsm,pgd.
        --eps: Budgets of --curve in 1/255: FIRST:LAST:STEP or a list.
        --ema: Use the averaged weights of runs.
        --views: Segmentation: single, or multi (six scales, flipped too).
        --protocol: Language: sliding (the paper's), strided, segments, documents.
        --split: Language: valid, test or valid,test.
        --precision: Language: fp32, tf32 or bf16, of matrix products on a GPU.
        --batch-size: Images at a time: bounds memory, changes no number. Default: 128 of 224 pixels
            on a GPU, more of smaller images; 128 on a CPU.
        --workers: Processes that decode sets too large for memory.
        --allow-missing: Evaluate an incomplete corruption set all the same.
        --out: For figures, and for records of models that are no run folder.
    """
    from pidformer import ranks
    from pidformer.evaluation.images import evaluate_models
    from pidformer.evaluation.suite import curve_suite, load_suite, read_budgets
    from pidformer.evaluation.tasks import evaluate_other, other_data, shared_task
    from pidformer.report.details import PROTOCOLS
    from pidformer.report.figures import curve_figure
    from pidformer.report.table1 import as_data, rich_table, table1
    from pidformer.report.terminal_tables import scores_table
    from pidformer.robustness.compare import group_runs

    for what, given, known in (
        ("views", views, ("single", "multi")),
        ("protocol", protocol, PROTOCOLS),
        ("precision", precision, ("fp32", "tf32", "bf16")),
        *(("split", part, ("train", "valid", "test")) for part in split.split(",")),
    ):
        check_known(what, given, known)  # also where the models' task does not ask for it
    shared: dict[str, Any] = {"device": ranks.join(device), "seed": seed, "limit": limit}
    shared |= {"gains": gains, "ema": ema, "command": command_line()}
    shared["is_shown"] = not as_json and ranks.is_main()
    if (task := shared_task(models)) != "classification":
        if curve is not None:
            raise InputError(f"--curve is for classifiers; for {task} take --suite robustness")
        own = {"views": views, "protocol": protocol, "split": split, "precision": precision}
        scores = evaluate_other(task, models, suite, data, out=out, **own, **shared)
        if not ranks.is_main():
            return
        if as_json:
            print_json(other_data(task, scores))
        else:
            tables().print(scores_table(task, scores))
        return
    attacks = [] if curve is None else [name.strip().lower() for name in curve.split(",")]
    if attacks:
        out_folder(out)
    found = evaluate_models(
        models,
        curve_suite(attacks, read_budgets(eps)) if attacks else load_suite(suite),
        data=data,
        out=out,
        domain=domain,
        batch_size=batch_size,
        workers=workers,
        allow_missing=allow_missing,
        **shared,
    )
    if not ranks.is_main():
        return
    groups = group_runs([evaluated.records for evaluated in found])
    lines = table1(groups)
    figure = out / "curve.png"
    if attacks:
        curve_figure(groups, figure)
    if as_json:
        named = zip(models, found, strict=True)
        by_model = [{"model": model} | evaluated.to_dict() for model, evaluated in named]
        print_json({"models": by_model, "table": as_data(lines, groups)})
        return
    console = tables()
    console.print(rich_table(lines, groups, console.width))
    for line in dict.fromkeys(line for evaluated in found for line in evaluated.missing_lines()):
        typer.echo(f"not evaluated: {line}")
    if attacks:
        typer.echo(f"figure {figure}, its points {figure.with_suffix('.csv')}")
