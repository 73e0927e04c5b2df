"""The commands and their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NoReturn

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

import steepest
from steepest.cli.bench import NAMES, bench, timings_table, write_bench
from steepest.cli.defaults import TRIALS
from steepest.cli.errors import BadInputError
from steepest.cli.experiment import Comparison, carry_out, prepare
from steepest.cli.plot import write_picture
from steepest.cli.plot_diagnostics import write_diagnostics_picture
from steepest.cli.record import as_record, write_json
from steepest.cli.report import Reporter, heading, results_table
from steepest.cli.specs import parse_specs
from steepest.cli.tasks import load_task
from steepest.cli.user_model import load_model
from steepest.model.routing import route

_BAD_INPUT, _INTERRUPTED = 2, 130

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"steepest {steepest.__version__} (torch {torch.__version__})")
        raise typer.Exit


@app.callback()
def steepest_command(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show versions."),
    ] = False,
) -> None:
    """PyTorch optimizers that take the steepest step in a chosen geometry."""


@app.command(no_args_is_help=True)
def compare(
    task: Annotated[
        str, typer.Argument(metavar="TASK", help="digits, digits-conv, text or diabetes.")
    ],
    optimizers: Annotated[
        str,
        typer.Option(metavar="LIST", help="Names with options, separated by commas; see above."),
    ] = "muon,adamw,sgd,projected",
    steps: Annotated[
        int | None, typer.Option(metavar="N", help="Steps of each run.", show_default="by task")
    ] = None,
    seeds: Annotated[
        int, typer.Option(metavar="N", help="Runs of each setting, with seeds 0 to N-1.")
    ] = 3,
    sweep: Annotated[
        bool,
        typer.Option(
            "--sweep",
            help=f"Try {TRIALS} learning rates with each optimizer; the one with the least "
            "validation loss is reported.",
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder for results.", show_default="compare-TASK"),
    ] = None,
    threads: Annotated[
        int,
        typer.Option(metavar="N", help="Threads of torch; results may depend on them."),
    ] = 1,
    diagnose: Annotated[
        bool,
        typer.Option(
            "--diagnose", help="Draw what each optimizer does to the weights, and keep the numbers."
        ),
    ] = False,
) -> None:
    """Train the same model with several optimizers and show who does better.

    **Tasks**, which need no download: `digits` (handwritten digits, multilayer perceptron),
    `digits-conv` (the same, convolutional network), `text` (Python's help topics by character,
    transformer), `diabetes` (regression).

    With one seed, all optimizers start from the same weights and see the same batches, with the
    same warm-up and cosine decay of the learning rate. Settings are chosen on validation data;
    the table shows test data.

    **Optimizers**: the classes of steepest and of torch.optim in small letters (`muon`, `adamuon`,
    `normuon`, `scion`, `polargrad`, `mop`, `spel`, `muonhyperball`, `dion2`, `projected`; `adamw`,
    `sgd`, …; torch's Muon is `torch-muon`). Options of the class follow after colons; those not
    given are tuned for the task:

    `--optimizers "muon:lr=0.02:steps=6,adamw:betas=(0.9,0.99),sgd:nesterov=true"`

    Muon and its relatives take only hidden matrices. AdamW steps the rest of the model, with the
    same lr and weight_decay or with the further options `rest_lr` and `rest_weight_decay`. In the
    task `text`, `qk_clip=30` bounds attention logits, with any optimizer.

    **Results**: a table, and in DIR a picture compare-TASK.png and every number in
    compare-TASK.json. Ctrl-C keeps the finished runs. Exit codes: 0 done, 2 bad input,
    130 interrupted.
    """
    threads_before = torch.get_num_threads()
    try:
        _check_counts(steps=steps, seeds=seeds, threads=threads)
        torch.set_num_threads(threads)
        comparison, folder = _prepare(task, optimizers, steps, seeds, sweep, out)
        comparison.diagnose = diagnose
        _run(comparison, folder)
    except BadInputError as error:
        _stop(str(error), _BAD_INPUT)
    except OSError as error:  # a full disk, say, in the middle
        _stop(f"cannot write results: {error}", _BAD_INPUT)
    except KeyboardInterrupt:  # outside the runs
        _stop("interrupted", _INTERRUPTED)
    finally:
        torch.set_num_threads(threads_before)


@app.command(name="plan", no_args_is_help=True)
def plan_command(
    model: Annotated[str, typer.Argument(metavar="MODULE:CALLABLE", help="What makes the model.")],
    head: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Module of the output head; 'none' for none.", show_default="found"
        ),
    ] = None,
) -> None:
    """Show which rule would step each parameter of your model, and why.

    MODULE:CALLABLE is a function or class without arguments that makes the model, as
    `my_models.py:build` or `package.module:Net`. Hidden matrices go to an optimizer of matrices,
    such as Muon, and the rest to AdamW: this is what `steepest.create_optimizer` does.

    Exit codes: 0 done, 2 bad input.
    """
    try:
        network = load_model(model)
        chosen = None if head == "none" else "auto" if head is None else head
        typer.echo(str(route(network, head=chosen)))
    except (BadInputError, ValueError) as error:
        _stop(str(error), _BAD_INPUT)


@app.command(name="bench")
def bench_command(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODULE:CALLABLE]", help="What makes the model.", show_default=False
        ),
    ] = None,
    optimizers: Annotated[
        str, typer.Option(metavar="LIST", help="Names, separated by commas.")
    ] = ",".join(NAMES),
    seconds: Annotated[float, typer.Option(metavar="S", help="For all rounds.")] = 10.0,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for results.")] = Path("bench"),
    threads: Annotated[int, typer.Option(metavar="N", help="Threads of torch.")] = 1,
) -> None:
    """Time a step of each optimizer on your model, beside torch's AdamW and Muon.

    Without MODULE:CALLABLE the model is the transformer of the task `text`. Gradients are random
    numbers: nothing is trained. All optimizers step in turn, round after round.

    Results: a table, and in DIR a bar chart bench.png and bench.json. Exit codes: 0 done, 2 bad
    input, 130 interrupted.
    """
    threads_before = torch.get_num_threads()
    try:
        _check_counts(threads=threads)
        if not 0.0 < seconds <= 86400.0:
            raise BadInputError(f"--seconds must be above 0 and at most 86400, got {seconds}")
        torch.set_num_threads(threads)
        network = load_task("text").build() if model is None else load_model(model)
        out.mkdir(parents=True, exist_ok=True)
        names = [name.strip() for name in optimizers.split(",")]
        bar = (TextColumn("timing"), BarColumn(), TextColumn("{task.percentage:.0f} %"))
        with Progress(*bar, console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task("timing", total=1.0)
            timings = bench(
                network,
                names,
                seconds=seconds,
                on_round=lambda share: progress.update(task, completed=share),
            )
        Console().print(timings_table(timings))
        entries = sum(param.numel() for param in network.parameters())
        for path in write_bench(out, model or "transformer of the task text", entries, timings):
            typer.echo(f"wrote {path}")
    except BadInputError as error:
        _stop(str(error), _BAD_INPUT)
    except OSError as error:
        _stop(f"cannot write results: {error}", _BAD_INPUT)
    except KeyboardInterrupt:
        _stop("interrupted", _INTERRUPTED)
    finally:
        torch.set_num_threads(threads_before)


# far beyond what is sensible, and within what memory and the libraries below can take
_MOST = {"steps": 1_000_000, "seeds": 1_000, "threads": 256}


def _check_counts(**counts: int | None) -> None:
    for name, count in counts.items():
        if count is not None and not 1 <= count <= _MOST[name]:
            raise BadInputError(f"--{name} must be from 1 to {_MOST[name]}, got {count}")


def _prepare(
    task_name: str, optimizers: str, steps: int | None, seeds: int, sweep: bool, out: Path | None
) -> tuple[Comparison, Path]:
    """Check everything that the user gave, and make the folder for results."""
    task = load_task(task_name)
    specs = parse_specs(optimizers, sweep=sweep)
    comparison = prepare(
        task,
        specs,
        steps=steps or task.steps,
        seeds=seeds,
        sweep=sweep,
        threads=torch.get_num_threads(),
    )
    folder = out or Path(f"compare-{task.name}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _clear(folder / f"compare-{task.name}")
    except OSError as error:
        raise BadInputError(f"cannot write to --out {folder}: {error.strerror}") from error
    return comparison, folder


def _clear(stem: Path) -> None:
    """Remove the files of an earlier comparison, which would stand beside those of this one.

    Writing them first shows that they can be written, before hours of training.
    """
    for suffix in (".json.partial", ".json", ".png"):
        path = stem.with_suffix(suffix)
        path.touch()
        path.unlink()


def _run(comparison: Comparison, folder: Path) -> None:
    """Carry out the comparison and show what came of it."""
    output, progress = Console(), Console(stderr=True)
    json_path = folder / f"compare-{comparison.task.name}.json"
    with Reporter(comparison, progress, json_path) as reporter:
        carry_out(comparison, reporter)
    write_json(json_path, as_record(comparison))
    paths = [json_path]
    if comparison.started():
        output.print(heading(comparison), markup=False, highlight=False, style="bold")
        table = results_table(comparison)
        # in a narrow terminal lines wrap, and nothing is left out
        needed = output.measure(table, options=output.options.update(width=200)).maximum
        Console(width=max(output.width, needed)).print(table)
        for note in _notes(comparison):
            output.print(note, markup=False, highlight=False, soft_wrap=True)
        paths.append(write_picture(comparison, json_path.with_suffix(".png")))
        if comparison.diagnose:
            name = f"compare-{comparison.task.name}-diagnose.png"
            paths.append(write_diagnostics_picture(comparison, folder / name))
    for path in paths:
        output.print(f"wrote {path}", markup=False, highlight=False, soft_wrap=True)
    if comparison.status == "interrupted":
        done = sum(len(trial.runs) for c in comparison.contenders for trial in c.trials)
        _stop(
            f"interrupted: kept the {done} finished of {comparison.run_count()} runs", _INTERRUPTED
        )


def _notes(comparison: Comparison) -> list[str]:
    return [
        f"{contender.spec.label}: the best learning rate is at the edge of the grid"
        for contender in comparison.contenders
        if contender.chosen_at_edge()
    ]


def _stop(message: str, code: int) -> NoReturn:
    typer.echo(f"steepest: {message}", err=True)
    raise typer.Exit(code)
