"""The commands and their options; :mod:`.run` and :mod:`.info` implement them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import normgrad

from ..operators.by_name import OPERATORS, choices_of
from ..support import cache
from . import FAILED, aclnn, archives, bench, capi, info, run, say, show, verify, warmup


def _signatures() -> str:
    """The operators with their arguments, the optional ones in brackets."""
    lines = []
    for operator in OPERATORS.values():
        tensors = [p.name if p.required else f"[{p.name}]" for p in operator.inputs]
        choices = [
            name if default is run.REQUIRED else f"[{name}]"
            for name, default in choices_of(operator.name).items()
        ]
        lines.append(f"- **{operator.name}**: {', '.join(tensors)}; {', '.join(choices)}")
    return "\n".join(lines)


_RUN_HELP = f"""
Compute the gradients of the tensors in a file; check and time them.

FILE is a .npz or .safetensors file with the operator's tensors under the names of its
parameters. It also has the operator's name, under the name operator, and the arguments that are not
tensors: in 0-d entries of a .npz file, or in the metadata of a .safetensors file. Options override
the file; entries that are not arguments are ignored.

    np.savez("layer.npz",
             operator="batch_norm_backward", training=True, eps=1e-5,
             grad_out=dy, input=x, weight=weight,
             save_mean=mean, save_invstd=invstd)

    safetensors.numpy.save_file(
        {{"grad_out": dy, "input": x, "mean": mean, "rstd": rstd}},
        "layer.safetensors",
        metadata={{"operator": "group_norm_backward",
                  "num_groups": "32"}})

    normgrad run layer.npz -o gradients.npz

FILE need not be trusted: nothing in it is unpickled, run, or taken for a path, and reading it takes
no more memory than {archives.MAX_RATIO:,} times its size plus {archives.RATIO_SLACK >> 20} MiB,
whatever sizes it claims.

The operators, with optional arguments in brackets:

{_signatures()}

Each output's largest error against a float64 reference is shown in units of the bound that the
library keeps on any data whose intermediates stay in float32's normal range. The exit status is 0
if every error is at most 1, 1 if one is larger (OUT is still written), and 2 if FILE or OUT cannot
be used.
"""

app = typer.Typer(
    cls=show.Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Normalisation layers, forward and backward, within a stated error bound.",
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"normgrad {normgrad.__version__}")
        raise typer.Exit


@app.callback()
def _normgrad(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass


@app.command("run", help=_RUN_HELP)
def _run(
    context: typer.Context,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The tensors, .npz or .safetensors.")
    ],
    out: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--out",
            metavar="OUT",
            help="Write the gradients to the file of exactly this name, in the format of its "
            "suffix, otherwise in that of FILE. OUT may be FILE.",
        ),
    ] = None,
    operator: Annotated[
        str | None, typer.Option(metavar="NAME", help="The operator, one of those above.")
    ] = None,
    training: Annotated[
        bool | None,
        typer.Option("--training/--evaluation", help="Which statistics the forward pass used."),
    ] = None,
    eps: Annotated[float | None, typer.Option(help="Added to a variance.")] = None,
    num_groups: Annotated[int | None, typer.Option(help="Groups of group norm.")] = None,
    normalized_shape: Annotated[
        str | None,
        typer.Option(metavar="SIZES", help="The last axes, of layer norm, such as 768 or 32,32."),
    ] = None,
    channel_axis: Annotated[
        int | None, typer.Option(help="The channels' axis: 1, or -1 for channels-last shapes.")
    ] = None,
    output_mask: Annotated[
        str | None,
        typer.Option(metavar="FLAGS", help="Which outputs to compute, such as 1,1,0."),
    ] = None,
    input_g: Annotated[
        bool | None, typer.Option(help="Whether to compute sum_dy and sum_dy_xmu.")
    ] = None,
    weight_g: Annotated[bool | None, typer.Option(help="Whether to compute grad_weight.")] = None,
    bias_g: Annotated[bool | None, typer.Option(help="Whether to compute grad_bias.")] = None,
) -> None:
    # Every other option is the operator's argument of the same name.
    others = ("file", "out", "operator")
    options = {k: v for k, v in context.params.items() if k not in others and v is not None}
    path = None if out is None else archives.out_path(out)
    request = run.load(file, operator, options)
    kind = None if path is None else run.out_format(path, request)
    report = run.execute(request)
    # Write before printing: the reader of the output may close it.
    if path is not None and kind is not None:
        with archives.rewriting(path) as opened:
            arrays = {result.name: result.array for result in report.results}
            archives.encode(opened, kind, arrays)
    for note in (*request.notes, *report.notes):
        say(f"note: {note}")
    run.show_report(request, report, path)
    if not all(result.passed for result in report.results):
        raise typer.Exit(FAILED)


@app.command("info")
def _info() -> None:
    """Show the versions, the CPU and GPUs, and how kernels use them."""
    show.table(info.gather())


@app.command("clean")
def _clean() -> None:
    """Remove compiled kernels and everything else from the cache folder, which info shows."""
    try:
        size = cache.size()
        cache.clean()
    except OSError as error:
        raise archives.InputError(
            "clean", f"the cache folder cannot be emptied ({error})"
        ) from None
    show.table([("removed", [(str(cache.folder()), f"{size / 2**20:.1f} MiB")])])


app.command("bench")(bench.bench)
app.command("verify", context_settings=verify.SETTINGS)(verify.verify)
app.command("warmup")(warmup.warmup)

app.add_typer(aclnn.app, name="aclnn")
app.add_typer(capi.app, name="capi")
