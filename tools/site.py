"""mkdocs hooks: files of the repository that pages of docs/ link to become pages of the site.

Links are written relative to the repository. They are rewritten here for the target's place on the site: below
`repository/`, if it is not in docs/.
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
_LANGUAGES = {".csv": "text", ".py": "python", ".yaml": "yaml", ".json": "json", ".jsonl": "json"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add every linked file, and the files that these link to."""
    waiting = [*DOCS.rglob("*.md")]
    while waiting:
        source = waiting.pop()
        for target in _targets(source):
            if not target.is_relative_to(DOCS) and files.get_file_from_path(place(target)) is None:
                files.append(File.generated(config, place(target), content=_content(target)))
                waiting.append(target)
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Rewrite links to the files' places on the site."""
    here = page.file.src_uri
    source = _source(here)

    def moved(link: re.Match[str]) -> str:
        target = (source.parent / link[1]).resolve()
        return posixpath.relpath(place(target), posixpath.dirname(here))

    return _LINK.sub(moved, markdown) if source.suffix == ".md" else markdown


def place(file: Path) -> str:
    """The source path on the site of a file of the repository."""
    if file.is_relative_to(DOCS):
        return file.relative_to(DOCS).as_posix()
    outside = f"repository/{file.relative_to(ROOT).as_posix()}"
    return outside if file.suffix == ".md" else f"{outside}.md"


def _source(src_uri: str) -> Path:
    """The file of the repository behind a page."""
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
