"""MkDocs hooks: API pages by package, tables of mixers and settings, and pages that live outside docs/.

All of it is read from the repository at build time, so that neither a module, a mixer nor a setting needs a line here.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from omegaconf import OmegaConf

from seq2seq.settings.declare import settings_rows
from seq2seq.settings.run import SECTIONS

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "seq2seq"
LINK = re.compile(r"(\[[^\]\n]*\])\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")
CODE_MARK = re.compile(r"<!-- code: (\S+) -->")
PRESETS_MARK = "<!-- table of presets -->"
CROSS_MARK = "<!-- table of cross mixers -->"
SETTINGS_MARK = "<!-- tables of settings -->"
# A paper as docstrings name it, and its title where it follows in quotation marks.
PAPER = re.compile(r"[A-Z]\w+(?:-[A-Z]\w+)*(?: et al\.| & [A-Z]\w+)?,? \d{4}(?: ?\(?,? ?'[^']+')?")
SECTION = re.compile(r"^(?:Args|Attributes|Raises|References?|Returns|Shape|Yields):", re.MULTILINE)
# A left-hand side in one word or in brackets.
FORMULA = re.compile(r"(?:\S+|\[[^\]]*\]) = ")
# Signs for words of an equation, and its scripts: _k, _{t,c}, ^T, ^(i-j). A letter is a variable, except a in prose.
SIGNS = {"sum": "∑", "sqrt": "√", "gamma": "γ", "phi": "φ", "<=": "≤", "*": "⊙", ".": "·", "'": "′", "x": "×"}
SIGN = re.compile(r"\b(?:sum|sqrt|gamma|phi)(?![a-zA-Z])|(?<= )(?:<=|\*|\.)(?= )|(?<=\b[NDCr] )x(?= [NDCr]\b)|'(?!s\b)")
SCRIPT = re.compile(r"([_^])(\{[^{}]*\}|\([^()]*\)|\w+)")
VARIABLE = re.compile(r"(?<![A-Za-z'])(?!a (?:[a-z]{2}|D x|C x))([A-Za-z])(?![A-Za-z])")
# How pages rank in the search of the site, by part of the navigation.
BOOSTS = {"Guide": 3, "API": 0.3}
PUBLIC = "api/public.md"
PUBLIC_PAGE = """# Public interface

These names, [the commands](commands.md), [the settings](../settings.md), the classes of [seq2seq.mixers](mixers.md),
and the contracts of mixers in [seq2seq.network.mixer](network.md) are public: a version that changes them says so in
the [changelog](../changelog.md). [From Python](../python.md) shows them at work. All other modules are described for
readers of the code.

| name | |
|---|---|
{rows}"""
REFERENCE = re.compile(r"^References?:(.*(?:\n[ \t]+.*)*)", re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill in the empty API section of the navigation."""
    for section in config.nav or []:
        if "API" in section:
            section["API"] = [{"Public interface": PUBLIC}, *({title: uri} for uri, title, _ in api_pages())]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages and the pages that live outside docs/."""
    for uri, title, modules in api_pages():
        text = f"# {title}\n\n" + "".join(f"::: {module}\n\n" for module in modules)
        if len(modules) == 1:  # a package: its name is the title
            text = f"::: {modules[0]}\n    options:\n      heading_level: 1\n"
        files.append(File.generated(config, uri, content=text))
    files.append(File.generated(config, PUBLIC, content=public_page()))
    for source, uri in config.extra["repository_pages"].items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Insert the tables, lead links to files outside docs/ to their pages, and rank guides above internals."""
    page.meta.setdefault("search", {"boost": BOOSTS.get(section_of(page), 1)})
    pages: dict[str, str] = config.extra["repository_pages"]
    here = {uri: source for source, uri in pages.items()}.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    folder = posixpath.dirname(page.file.src_uri) or "."

    def site_link(match: re.Match[str]) -> str:
        text, path, anchor = match.group(1), match.group(2), match.group(3) or ""
        target = posixpath.normpath(posixpath.join(posixpath.dirname(here), path))
        uri = site_page(target, pages)
        return f"{text}({posixpath.relpath(uri, folder)}{anchor})" if uri else text.strip("[]")

    markdown = LINK.sub(site_link, markdown)
    markdown = CODE_MARK.sub(code_block, markdown)
    for mark, table in ((PRESETS_MARK, preset_table), (CROSS_MARK, cross_table), (SETTINGS_MARK, settings_tables)):
        if mark in markdown:
            markdown = markdown.replace(mark, table())
    return markdown


def section_of(page: Page) -> str:
    """Return the title of the navigation's part that has the page; empty for a page of its own."""
    return page.ancestors[-1].title if page.ancestors else ""


def public_page() -> str:
    """Return the page that says which names are public, from `seq2seq.__init__`."""
    rows = []
    for name, module in public_names().items():
        tree = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text("utf-8"))
        node = next(each for each in tree.body if getattr(each, "name", None) == name)
        assert isinstance(node, ast.ClassDef | ast.FunctionDef)
        first = (ast.get_docstring(node) or "").split("\n")[0]
        rows.append(f"| [`seq2seq.{name}`][{module}.{name}] | {in_cell(first)} |\n")
    return PUBLIC_PAGE.format(rows="".join(rows))


def public_names() -> dict[str, str]:
    """Return the module of each public name."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text("utf-8"))
    assigned = (each for each in tree.body if isinstance(each, ast.Assign))
    return next(ast.literal_eval(each.value) for each in assigned if ast.unparse(each.targets[0]) == "_MODULES")


def site_page(target: str, pages: dict[str, str]) -> str | None:
    """Return the page that shows a file of the repository; None if the site has none."""
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    if target.startswith("seq2seq/") and target.endswith(".py"):
        parts = target.removesuffix("/__init__.py").removesuffix(".py").split("/")
        page = {name: uri for uri, _, modules in api_pages() for name in modules}
        known = page.get(".".join(parts[:2]))
        return f"{known}#{'.'.join(parts)}" if known else None
    return pages.get(target) or pages.get(f"{target}/README.md")


def code_block(match: re.Match[str]) -> str:
    """Return the file that a mark names as a block of code."""
    path = ROOT / match.group(1)
    language = {".py": "python"}.get(path.suffix, path.suffix.removeprefix("."))
    return f"```{language}\n{path.read_text('utf-8')}```"


def api_pages() -> list[tuple[str, str, list[str]]]:
    """Return (page, title, modules) for the commands and the model at the top, and for every package."""
    modules = sorted(path.stem for path in PACKAGE.glob("*.py") if path.stem != "__init__")
    commands = [name for name in modules if "def main(" in (PACKAGE / f"{name}.py").read_text("utf-8")]
    top = [name for name in modules if name not in commands]
    pages = [
        ("api/commands.md", "Commands", [f"seq2seq.{name}" for name in commands]),
        ("api/model.md", "Model and contracts", [f"seq2seq.{name}" for name in top]),
    ]
    for folder in sorted(path.parent for path in PACKAGE.glob("*/__init__.py")):
        pages.append((f"api/{folder.name}.md", folder.name, [f"seq2seq.{folder.name}"]))
    return pages


def settings_tables() -> str:
    """Return a table of keys, defaults, allowed values and help for each section of the settings."""
    tables = []
    for section, cls in SECTIONS.items():
        title = f"`{section}`" if section else "Top level"
        rows = [
            f"| {code(name)} | {code(shown(value))} | {in_cell(wanted)} | {in_cell(meaning)} |\n"
            for name, value, meaning, wanted in settings_rows(cls, section)
        ]
        head = "| setting | default | allowed | meaning |\n|---|---|---|---|\n"
        tables.append(f"## {title}\n\n{head}{''.join(rows)}")
    return "\n".join(tables)


def shown(value: Any) -> str:
    """Return a value as YAML has it."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value).replace("'", "")


def preset_table(presets: Sequence[str] = ()) -> str:
    """Return the table of presets (all by default): what conf/mixer composes, and what the docstrings say."""
    presets = presets or sorted(path.stem for path in (ROOT / "conf/mixer").glob("*.yaml"))
    with initialize_config_dir(version_base="1.3", config_dir=str(ROOT / "conf")):
        rows = [preset_row(name, plain(compose(f"mixer/{name}"))) for name in presets]
    head = "| preset | mixer | published in |\n|---|---|---|\n"
    return head + "".join(rows)


def cross_table() -> str:
    """Return the table of cross mixers: what conf/mixer/cross composes, and what the docstrings say."""
    names = sorted(path.stem for path in (ROOT / "conf/mixer/cross").glob("*.yaml"))
    with initialize_config_dir(version_base="1.3", config_dir=str(ROOT / "conf")):
        slots = {f"cross/{name}": plain(compose(f"mixer/cross/{name}")) for name in names}
    rows = [preset_row(name, {"encoder": {}, **slot}) for name, slot in slots.items()]
    return "| cross mixer | reads the source by | published in |\n|---|---|---|\n" + "".join(rows)


def plain(config: Any) -> dict[str, Any]:
    """Return a composed preset as a dictionary; interpolations stay as they are written."""
    values = OmegaConf.to_container(config)
    assert isinstance(values, dict)
    return values["mixer"]


def preset_row(name: str, mixer: dict[str, Any]) -> str:
    """Return one row of the table, of the class that gives the preset its name, a path below conf/mixer."""
    target = own_class(mixer)
    module, _, cls = target.rpartition(".")
    summary, equation, papers = describe(module, cls)
    comment = leading_comment(ROOT / f"conf/mixer/{name}.yaml")
    what = [in_cell(comment or summary)]
    if equation:
        what.append(typeset(equation))
    if settings := slot_settings(mixer):
        what.append(f"Settings: {settings}")
    return f"| [`{posixpath.basename(name)}`][{target}] | {'<br>'.join(what)} | {in_cell(papers)} |\n"


def own_class(mixer: dict[str, Any]) -> str:
    """Return the class that gives a preset its name."""
    return target_of(own_slot(mixer))


def own_slot(mixer: dict[str, Any]) -> dict[str, Any]:
    """Return the encoder; the cross mixer where that is neither the usual attention nor the encoder's twin."""
    encoder, cross = mixer["encoder"], mixer["cross"]
    if not encoder:
        return cross
    of_encoder, of_cross = (target_of(slot).rpartition(".")[0] for slot in (encoder, cross))
    return encoder if of_cross in ("seq2seq.mixers.attention", of_encoder) else cross


def target_of(slot: dict[str, Any]) -> str:
    """Return the class of a slot, or of the first of its kinds."""
    return next(iter(slot.get("kinds", {"": slot}).values()))["_target_"]


def slot_settings(mixer: dict[str, Any]) -> str:
    """Return the values of the preset's own mixer that conf/mixer sets and conf/model does not."""
    slot = own_slot(mixer)
    if "kinds" in slot:
        return "; ".join(f"{name} {values_of(kind)}" for name, kind in slot["kinds"].items())
    return values_of(slot | slot.get("per_layer", {}))


def values_of(slot: dict[str, Any]) -> str:
    """Return `key: value` of the plain values of a slot."""
    hidden = ("_target_", "per_layer", "backend", "kernel")
    own = {key: value for key, value in slot.items() if key not in hidden and value is not None}
    texts = [f"{key}: {shown(value)}" for key, value in own.items()]
    return ", ".join(code(text) for text in texts if "${" not in text)


def describe(module: str, cls: str) -> tuple[str, str, str]:
    """Return summary, equation and papers of a class from its docstring and its module's.

    The summary is the first line of the class, or of the module where the class begins with its equation.
    Papers are the `Reference` section, or else the papers that the text names.
    """
    tree = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text("utf-8"))
    node = next(each for each in tree.body if isinstance(each, ast.ClassDef) and each.name == cls)
    of_module, of_class = ast.get_docstring(tree) or "", ast.get_docstring(node) or ""
    text = SECTION.split(of_class)[0].strip()
    paragraphs = [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]
    summary = paragraphs[0] if " = " not in paragraphs[0] else of_module.split("\n")[0]
    return summary, equation_in(paragraphs), papers_of(of_class) or papers_of(of_module)


def equation_in(paragraphs: Sequence[str]) -> str:
    """Return the first paragraph with " = ", and the beginning of the next if that is an equation, too."""
    index = next((index for index, paragraph in enumerate(paragraphs) if " = " in paragraph), None)
    if index is None:
        return ""
    lines = [re.split(r"\. (?=[A-Z])", paragraphs[index])[0]]
    if paragraphs[index + 1 :] and FORMULA.match(paragraphs[index + 1]):
        lines.append(re.split(r"(?:\.|:) (?=\w)", paragraphs[index + 1])[0])
    return "; ".join(line.rstrip(".:") for line in lines)


def papers_of(docstring: str) -> str:
    """Return the papers of a `Reference` section, or else those named in the text, each once."""
    section = REFERENCE.search(docstring)
    if section:
        return " ".join(section.group(1).split())
    names = [re.sub(r"[(,]? ?'.*", "", paper) for paper in PAPER.findall(" ".join(docstring.split()))]
    return "; ".join(dict.fromkeys(name.replace(",", "") for name in names))


def leading_comment(path: Path) -> str:
    """Return the comment lines at the top of a preset's YAML, joined: its own description, if it has one."""
    lines: list[str] = []
    for line in path.read_text("utf-8").split("\n"):
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    return " ".join(lines)


def in_cell(text: str) -> str:
    """Return prose for a cell of a table, in which `|` and `<` would be markup."""
    return text.replace("<", "&lt;").replace("|", "&#124;")


def typeset(equation: str) -> str:
    """Return an equation of a docstring as HTML for a cell of a table: variables in italics, scripts, and signs."""
    parts = SCRIPT.split(SIGN.sub(lambda match: SIGNS[match.group()], equation))
    html = variables(parts[0])
    for mark, script, rest in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        tag = "sub" if mark == "_" else "sup"
        # Two letters are two indices
        inner = f"<i>{script}</i>" if len(script) == 2 and script.islower() else variables(script.strip("{}"))
        html += f"<{tag}>{inner}</{tag}>{variables(rest)}"
    return f'<span class="equation">{html}</span>'


def variables(text: str) -> str:
    """Return text for HTML with its single letters in italics."""
    return escaped(VARIABLE.sub("\0\\1\1", text)).replace("\0", "<i>").replace("\1", "</i>")


def code(text: str) -> str:
    """Return code for a cell of a table, safe from Markdown's own signs."""
    return f"<code>{escaped(text)}</code>"


def escaped(text: str) -> str:
    """Return text for HTML in a cell of a table."""
    return re.sub(r"[&<>|_*`~^\[\]]", lambda match: f"&#{ord(match.group())};", text)
