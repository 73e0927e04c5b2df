"""Fixtures for the tests of the command line."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from steepest.cli.app import app
from steepest.cli.experiment import carry_out, prepare
from steepest.cli.specs import parse_specs
from steepest.cli.tasks import load_task


class Watcher:
    """Keeps the names of what it is told."""

    def __init__(self):
        self.events = []

    def run_started(self, contender, trial, seed):
        self.events.append(("started", contender.spec.label, trial.settings["lr"], seed))

    def step_done(self, loss):
        self.events.append(("step", loss))

    def run_finished(self, contender, run):
        self.events.append(("finished", contender.spec.label, run.seed))


@pytest.fixture
def watcher():
    return Watcher()


@pytest.fixture(scope="session")
def digits():
    return load_task("digits")


@pytest.fixture
def steepest_command():
    """Call the command line with arguments."""
    return lambda *arguments: CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture
def compare(digits):
    """Carry out a comparison on digits, of few steps."""

    def compare(optimizers, *, steps=3, seeds=2, sweep=False):
        specs = parse_specs(optimizers, sweep=sweep)
        comparison = prepare(digits, specs, steps=steps, seeds=seeds, sweep=sweep, threads=1)
        carry_out(comparison, Watcher())
        return comparison

    return compare
