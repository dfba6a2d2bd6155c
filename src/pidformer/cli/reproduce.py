"""`pidformer reproduce`: the paper's tables and figures at a scale of one's own."""

from pathlib import Path
from typing import Any

import typer

from pidformer.cli.options import Device, Jobs, Json, print_json, resumable, tables
from pidformer.errors import InputError


def reproduce(
    scale: str = "demo",
    data: Path | None = None,
    out: Path = Path("reproduction"),
    seeds: int | None = None,
    only: str | None = None,
    study: Path | None = None,
    minutes: float | None = None,
    dry_run: bool = False,
    rehearse: bool = False,
    jobs: Jobs = None,
    cluster: str | None = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Train, evaluate, analyse and report the twins behind the paper's tables and figures.

    A killed run goes on where it stopped. On one machine, --jobs processes share the work; on many,
    --cluster gives each job to a node that has room for it, and to another one if that is lost.

    Example: pidformer reproduce --scale demo --seeds 2
    Example: pidformer reproduce --scale small --data DIR --only table1,figures --dry-run
    Example: pidformer reproduce --scale paper --rehearse
    Example: pidformer reproduce --scale paper --data DIR --out DISK/paper --cluster auto
    Example: pidformer reproduce --study study/tiny-imagenet-100-long.yaml --data DIR --out long

    Options:
        --scale: demo: digits on a CPU; small: tiny-imagenet-100, camvid, novels; paper:
            ImageNet-1k, ADE20K, WikiText-103.
        --data: Folder that holds the sets; demo needs none.
        --out: Folder for runs, locks and report.
        --seeds N: Train with seeds 0 to N - 1 (2 by default); with --study, N of its own.
        --only: Parts of it: table1,table2,table3,figures; with --study, its groups.
        --study FILE: A registered study in place of a scale: its YAML file (docs/reproduce.md).
        --minutes: Skip runs not expected to finish within so many minutes.
        --dry-run: Show the plan and its cost; do nothing.
        --rehearse: A few real steps of every kind of job: what fits, what it costs, what would
            fail. For --scale paper without --data, on made-up files.
        --cluster ADDRESS: Run the jobs on a Ray cluster that shares the disk of --out: auto (the
            one of this machine) or HOST:PORT (pip install 'pidformer[cluster]').
    """
    from pidformer.reproduce import reproduce as run

    parts = [] if only is None else [part.strip() for part in only.split(",")]
    if rehearse:
        given = {"--dry-run": dry_run, "--minutes": minutes, "--jobs": jobs, "--cluster": cluster}
        if others := [name for name, value in given.items() if value]:
            raise InputError(
                f"--rehearse tries each kind of job once, here; leave out {', '.join(others)} "
                "(--dry-run shows its estimates afterwards)"
            )
        _rehearse(
            out, as_json, scale=scale, data=data, seeds=seeds, only=parts, study=study,
            device=device,
        )  # fmt: skip
        return
    with resumable(out):
        found = run(
            out,
            scale=scale,
            data=data,
            seeds=seeds,
            only=parts,
            study=study,
            minutes=minutes,
            jobs=jobs,
            cluster=cluster,
            device=device,
            dry_run=dry_run,
            is_shown=not as_json,
        )
    if as_json:
        print_json(found.to_dict())
    else:
        from pidformer.reproduce.display import plan_table

        tables().print(plan_table(found.plan, found.lines))
        for job, reason in found.failed.items():
            if reason not in {f"needs {other}" for other in found.failed}:
                typer.echo(f"{job} failed: {reason}")
        if not dry_run and found.report.exists():
            typer.echo(f"report: {found.report}")
    if found.failed:
        first, reason = next(iter(found.failed.items()))
        raise InputError(
            f"{len(found.failed)} of {len(found.lines)} jobs failed; {first}: {reason}"
        )


def _rehearse(out: Path, as_json: bool, **options: Any) -> None:
    from pidformer.reproduce.display import rehearsal_table
    from pidformer.reproduce.start import rehearse_plan

    with resumable(out):
        found, plan = rehearse_plan(out, is_shown=not as_json, **options)
    failed = [kind for kind in found.kinds if kind.failure is not None]
    if as_json:
        print_json(found.to_dict() | {"blocked": [vars(part) for part in plan.blocked]})
    else:
        tables().print(rehearsal_table(found))
        for part in plan.blocked:
            typer.echo(f"{part.part} cannot be made ({part.state}): {part.reason}")
    if failed:
        raise InputError(
            f"{len(failed)} kinds of jobs would fail; {failed[0].title}: {failed[0].failure}"
        )
    if lacking := [part for part in plan.blocked if part.state == "no data"]:
        first = lacking[0]
        raise InputError(f"{len(lacking)} parts lack their data; {first.part}: {first.reason}")
