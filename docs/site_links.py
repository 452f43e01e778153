"""What the site has of the rest of the repository: READMEs as pages, examples as pages of code.

The pages of docs/ link to files beside it, as people read them in the repository. Here those files
become pages of the site under the same path, and links to any other file become plain text.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import TYPE_CHECKING

from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
PAGES = (
    "CHANGELOG.md",
    "SECURITY.md",
    "actors/bakery/README.md",
    "actors/central/README.md",
    "actors/lamport/README.md",
    "actors/paxos/README.md",
    "deploy/README.md",
    "transport/README.md",
)
EXAMPLES = "examples/*.py"
LINK = re.compile(r"\[(?P<text>[^\[\]]*)\]\((?P<to>[^()\s:#]+)(?P<anchor>#[^()\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie outside of docs/."""
    for page in PAGES:
        files.append(File.generated(config, page, abs_src_path=str(ROOT / page)))
    for path in sorted(ROOT.glob(EXAMPLES)):
        name = path.relative_to(ROOT).as_posix()
        code = f"# {path.name}\n\n```python\n{path.read_text(encoding='utf-8')}```\n"
        added = File.generated(config, f"{name}.md", content=code)
        files.append(added)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links at the pages of the site, and keep only the text of those that lead elsewhere."""
    del config
    uri = page.file.src_uri
    here = PurePosixPath(uri if uri in PAGES or uri.startswith("examples/") else f"docs/{uri}")

    def link(found: re.Match[str]) -> str:
        target = normpath(str(here.parent / found["to"])).removeprefix("docs/")
        for known in (target, f"{target}.md", f"{target}/README.md"):
            if files.get_file_from_path(known):
                up = "../" * (len(PurePosixPath(uri).parts) - 1)
                return f"[{found['text']}]({up}{known}{found['anchor'] or ''})"
        return found["text"]

    return LINK.sub(link, markdown)
