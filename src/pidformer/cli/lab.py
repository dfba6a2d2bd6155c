"""`pidformer lab`: a page to feel the controller."""

from pathlib import Path
from typing import Annotated

import typer


def lab(
    run: Annotated[
        list[str] | None,
        typer.Option(help="A run folder to attack, read or browse; give it again for more."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder of an image set to attack pictures of.")
    ] = None,
    port: Annotated[int, typer.Option(help="0 takes any free one.")] = 7860,
    host: Annotated[
        str, typer.Option(help="127.0.0.1 is this machine alone; any other wants a token.")
    ] = "127.0.0.1",
    token: Annotated[
        str | None, typer.Option(help="What visitors must show; made and printed if left out.")
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(help="Write the Controller view to this folder instead: needs no server."),
    ] = None,
) -> None:
    """Open a page with sliders for the controller, attacks, texts and results.

    Nothing leaves this machine. Needs the extra: pip install 'pidformer[lab]'; --export does not.

    Example: pidformer lab --run runs/softmax --run runs/pid

    Example: pidformer lab --export controller
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
