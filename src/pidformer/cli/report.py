"""`pidformer report`: what any number of runs showed, on one page."""

from pathlib import Path

import typer

from pidformer.cli.options import Json, command_line, print_json


def report(
    folders: list[Path],
    out: Path = Path("report"),
    publish: Path | None = None,
    mixed: bool = False,
    as_json: Json = False,
) -> None:
    """Tables, figures and findings from the records of runs: report.html, report.md, figures.

    The page needs no network. Runs that differ only in their seed are one model; the others are
    compared with the softmax one. What has not been measured says which command would do it.

    Example: pidformer report runs
    Example: pidformer report runs/softmax-seed0 runs/pid-seed0 --out my-report --json

    Published records are read like run folders:

    Example: pidformer report runs --publish results/camvid
    Example: pidformer report results/camvid

    Options:
        folders FOLDER: Run folders, or folders that contain them; or published records.
        --out: Folder for the report.
        --publish STUDY: Instead of a report: put the runs' records, small and without paths, into
            this folder of a study (results/STUDY).
        --mixed: Also runs of different recipes or data in one report.
    """
    from pidformer.report.publish import publish as publish_runs
    from pidformer.report.write import write_report

    if publish is not None:
        paths = publish_runs(folders, publish)
        if as_json:
            print_json({"published": [str(path) for path in paths]})
        else:
            typer.echo(f"{len(paths)} runs in {publish}")
        return
    found = write_report(folders, out, mixed=mixed, command=command_line())
    if as_json:
        print_json(found.to_dict())
        return
    for line in found.findings:
        typer.echo(line)
    typer.echo(f"{found.runs} runs; report: {found.page}")
