"""Builds the site: MkDocs calls these functions (`hooks` in mkdocs.yml), in the order in which they are here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docs.site.checks import all_public_names, faults_of_reference, missing_methods, public_modules, remote_assets
from docs.site.links import PICTURES, links_of, page_of, shown_as_page, with_links_of_site, with_separate_lists
from docs.site.navigation import BENCHMARKS, PROJECT, cards, llms_txt, navigation, summary, with_titles
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
_SECTIONS = "<!-- the sections of the site -->"
_paths: dict[str, str] = {}
"""The path in the repository of each page of the site."""
_summaries: dict[str, tuple[str, str]] = {}
"""Title and first sentence of each page."""


def on_config(config: Any) -> Any:
    """Order the pages, and refuse to build a reference that lacks a public name."""
    reference = {path.name: path.read_text() for path in (ROOT / "docs" / "reference").glob("*.md")}
    faults = list(faults_of_reference(all_public_names(ROOT), public_modules(ROOT), reference))
    if faults:
        raise PluginError("\n".join(faults))
    config.nav = with_titles(navigation(ROOT), ROOT)
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add what pages link to and docs/ does not have, and what those link to in turn."""
    _paths.clear()
    _paths.update({file.src_uri: f"docs/{file.src_uri}" for file in files if file.src_uri.endswith(".md")})
    waiting = [*_paths.values(), *PROJECT, *BENCHMARKS]
    while waiting:
        path = waiting.pop()
        page = page_of(path, ROOT)
        if not path.startswith("docs/") and page not in files.src_uris and path != "README.md":
            if path.endswith(PICTURES):
                files.append(File.generated(config, page, content=(ROOT / path).read_bytes()))
                continue
            files.append(File.generated(config, page, content=shown_as_page(path, ROOT)))
            _paths[page] = path
        elif not path.startswith("docs/"):
            continue
        text = shown_as_page(path, ROOT)
        base = f"{path}/contents.md" if (ROOT / path).is_dir() else path
        waiting += [to for to in links_of(text, base) if _is_to_add(to, files)]
    return files


def _is_to_add(path: str, files: Files) -> bool:
    is_outside = not path.startswith("docs/") and path != "docs"
    return is_outside and (ROOT / path).exists() and page_of(path, ROOT) not in files.src_uris


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turn links between files of the repository into links between pages."""
    _summaries[page.file.src_uri] = summary(markdown)
    path = _paths[page.file.src_uri]
    markdown = markdown.replace(_SECTIONS, cards(navigation(ROOT)))
    base = f"{path}/contents.md" if (ROOT / path).is_dir() else path
    return with_links_of_site(with_separate_lists(markdown), base, ROOT)


def on_post_build(config: Any) -> None:
    """Write llms.txt, and refuse a reference without methods, and pages that load anything from another host."""
    site = Path(config.site_dir)
    reference = [page.read_text(encoding="utf-8") for page in (site / "reference").glob("*.html")]
    if missing := missing_methods(reference):
        raise PluginError(f"the reference shows no methods: {', '.join(missing)}; see `filters` in mkdocs.yml")
    sections = [(name, pages) for entry in navigation(ROOT) if isinstance(entry, dict) for name, pages in entry.items()]
    rows = [(name, [(page[:-3] + ".html", *_summaries[page]) for page in pages]) for name, pages in sections]
    (site / "llms.txt").write_text(llms_txt(config.site_description, rows), encoding="utf-8")
    for file in [*site.rglob("*.html"), *site.rglob("*.css")]:
        remote = remote_assets(file.read_text(encoding="utf-8"))
        if remote:
            raise PluginError(f"{file.relative_to(site)} loads {', '.join(sorted(set(remote)))}")
