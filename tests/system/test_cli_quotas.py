"""Commands about quotas, and about what outlives its client: their arguments."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from fencelock.actors.error import ConfigError
from fencelock.cluster.cli.main import app
from fencelock.cluster.cli.quotas import limit_of


@pytest.mark.parametrize(
    ("text", "value"),
    [("0", 0), ("25000", 25_000), ("64MiB", 64 << 20), ("1 GiB", 1 << 30), ("default", None)],
)
def test_sizes_are_numbers_of_bytes_or_have_a_unit(text: str, value: int | None) -> None:
    assert limit_of("bytes", text, sizes=True) == value


@pytest.mark.parametrize("text", ["", "-1", "64MB", "1.5GiB", "many", "9" * 19])
def test_a_wrong_size_is_refused_with_the_value_and_the_form(text: str) -> None:
    with pytest.raises(ConfigError, match="must be a number of bytes, a size as 64MiB, or default"):
        limit_of("bytes", text, sizes=True)


def test_only_bytes_have_a_unit() -> None:
    with pytest.raises(ConfigError, match="--entries is '1KiB', and must be a number, or default"):
        limit_of("entries", "1KiB")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["keys", "quota"], "give the name of one key, or --every, or --no-key"),
        (["keys", "quota", "shop", "--every"], "give the name of one key"),
        (["keys", "quota", "*"], "use --no-key or --every"),
        (["map", "delete", "m"], "give one KEY, or --prefix, or --all, or --maps"),
        (["map", "delete", "m", "k", "--all"], "give one KEY, or --prefix"),
        (["map", "delete", "m", "k", "--charged-to", "shop"], "leave it out with KEY"),
        (["latch", "delete"], "give one NAME, or --prefix, or --all"),
        (["barrier", "delete", "b", "--all"], "give one NAME, or --prefix, or --all"),
    ],
)
def test_arguments_that_contradict_each_other_are_refused(
    arguments: list[str], problem: str
) -> None:
    error = CliRunner().invoke(app, arguments).exception
    assert isinstance(error, ConfigError)
    assert problem in str(error)
