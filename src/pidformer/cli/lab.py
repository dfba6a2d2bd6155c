"""`pidformer lab`: a page to feel the controller."""

from pathlib import Path

import typer


def lab(
    run: list[str] | None = None,
    data: Path | None = None,
    port: int = 7860,
    host: str = "127.0.0.1",
    token: str | None = None,
    export: Path | None = None,
) -> None:
    """Open a page with sliders for the controller, attacks, texts and results.

    Nothing leaves this machine. Needs the extra: pip install 'pidformer[lab]'; --export does not.

    Example: pidformer lab --run runs/softmax --run runs/pid
    Example: pidformer lab --export controller

    Options:
        --run: A run folder to attack, read or browse; give it again for more.
        --data: Folder of an image set to attack pictures of.
        --port: 0 takes any free one.
        --host: 127.0.0.1 is this machine alone; any other wants a token.
        --token: What visitors must show; made and printed if left out.
        --export: Write the Controller view to this folder instead: needs no server.
    """
    if export is not None:
        from pidformer.lab.static import export_page

        typer.echo(f"page: {export_page(export)}")
        return
    from pidformer.lab.guard import is_local
    from pidformer.lab.server import open_lab

    with open_lab(run or [], host=host, port=port, token=token, data=data) as server:
        if not is_local(host):
            typer.echo(
                f"pidformer: warning: {host} can be reached from other machines; only those who "
                "know the token get in, and what they see travels unencrypted",
                err=True,
            )
        typer.echo(f"lab: {server.address}  (Ctrl-C ends it)")
        server.wait()
