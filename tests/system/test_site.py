"""The documentation as a site: built strictly, read without a network, complete."""

from __future__ import annotations

import builtins
import inspect
import re
import sys
from pathlib import Path

import pytest
from support.paths import ROOT
from support.programs import package, run_to_end

import fencelock

DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    package("mkdocs", "it is in the extra 'docs'")
    folder = tmp_path_factory.mktemp("site")
    command = ("-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder))
    built = run_to_end([sys.executable, *command], cwd=ROOT)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def test_no_page_fetches_anything_from_elsewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 60
    fetched = (
        r'<(?:script|img|source|iframe)[^>]*\ssrc="?https?:|<link rel="(?!canonical)[^>]*https?:'
    )
    assert [page.name for page in pages if re.search(fetched, page.read_text("utf-8"))] == []


def test_the_reference_documents_every_class_that_users_call(site: Path) -> None:
    reference = "".join(page.read_text("utf-8") for page in sorted((site / "reference").iterdir()))
    for name in fencelock.__all__:
        kind = getattr(fencelock, name)
        if inspect.isclass(kind) and kind.__module__.startswith("fencelock.cluster."):
            assert f'id="fencelock.{name}"' in reference, name
    functions = (site / "reference" / "default.html").read_text("utf-8")
    assert 'id="fencelock.configure"' in functions
    assert "<code>FENCELOCK_CONNECT</code>" in functions  # Of its docstring.
    for name in vars(fencelock):
        if f"{name} = _client.{name}" in inspect.getsource(fencelock):
            assert f'client.html#fencelock.Client.{name}"' in functions, name
            assert f'aio.html#fencelock.aio.Client.{name}"' in functions, name


def test_every_exception_is_explained() -> None:
    page = (DOCS / "exceptions.md").read_text("utf-8")
    for name in fencelock.__all__:
        kind = getattr(fencelock, name)
        if inspect.isclass(kind) and issubclass(kind, fencelock.FencelockError):
            assert f"`{name}`" in page, name
    named = set(re.findall(r"`(\w+Error)`", page))
    assert not [
        name for name in named if not hasattr(fencelock, name) and not hasattr(builtins, name)
    ]
