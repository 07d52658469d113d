"""Hooks of mkdocs: what the pages of docs/ link to elsewhere in the repository becomes a page of the site, too.

A link is written as the repository needs it. Here it is followed from the file that has it, and written anew for the
place that the file it leads to has on the site: below `repository/`, where it is not in docs/.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
_LINK = re.compile(r"(?<=\]\()(?!https?:)([^)#\s]+)")
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".json": "json"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add every file that is linked to, and those that these link to."""
    waiting = [*DOCS.rglob("*.md")]
    while waiting:
        source = waiting.pop()
        for target in _targets(source):
            if not target.is_relative_to(DOCS) and files.get_file_from_path(place(target)) is None:
                files.append(File.generated(config, place(target), content=_content(target)))
                waiting.append(target)
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Let links lead to where their files are on the site."""
    here = page.file.src_uri
    source = _source(here)

    def moved(link: re.Match[str]) -> str:
        target = (source.parent / link[1]).resolve()
        return posixpath.relpath(place(target), posixpath.dirname(here))

    return _LINK.sub(moved, markdown) if source.suffix == ".md" else markdown


def place(file: Path) -> str:
    """Where a file of the repository is among the sources of the site."""
    if file.is_relative_to(DOCS):
        return file.relative_to(DOCS).as_posix()
    outside = f"repository/{file.relative_to(ROOT).as_posix()}"
    return outside if file.suffix == ".md" else f"{outside}.md"


def _source(src_uri: str) -> Path:
    """The file of the repository that a page is made of."""
    outside = src_uri.removeprefix("repository/")
    if outside == src_uri:
        return DOCS / src_uri
    return ROOT / (outside if (ROOT / outside).is_file() else outside.removesuffix(".md"))


def _targets(source: Path) -> list[Path]:
    if source.suffix != ".md":
        return []
    return [(source.parent / link).resolve() for link in _LINK.findall(source.read_text())]


def _content(file: Path) -> str:
    text = file.read_text()
    if file.suffix == ".md":
        return text
    return f"# {file.relative_to(ROOT)}\n\n```{_LANGUAGES[file.suffix]}\n{text}```\n"
