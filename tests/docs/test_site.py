"""The site without a browser: what its pages refer to, and what the hooks of the build put into them."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import keras
import pytest

import keras_preempt
from keras_preempt.testing import FakeGcs
from tests.docs import built_site
from tests.docs.pages import ROOT, program

DOCS = ROOT / "docs"
EXAMPLES = sorted(
    str(path.relative_to(ROOT))
    for path in (ROOT / "examples").rglob("*")
    if path.is_file() and "__pycache__" not in path.parts
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_site.build(tmp_path_factory.mktemp("built"))


class _Reader(HTMLParser):
    """Collects what a browser would fetch for a page, and the text of its code blocks."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.classes: set[str] = set()
        self.code: list[str] = []
        self._depth = 0
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.classes |= set(values.get("class", "").split())
        if tag == "link" and values.get("rel") not in ("canonical", "next", "prev", "edit"):
            self.fetched.append(values.get("href", ""))
        elif tag in ("script", "img", "source", "iframe", "audio", "video", "embed", "input"):
            self.fetched += [values.get("src", ""), *values.get("srcset", "").split()]
        self.fetched += _addresses(values.get("style", ""))
        if tag == "pre":
            self.code.append("")
            self._depth += 1

    def handle_endtag(self, tag: str) -> None:
        self._depth -= tag == "pre"

    def handle_data(self, data: str) -> None:
        if self._depth:
            self.code[-1] += data


def _addresses(style: str) -> list[str]:
    return re.findall(r"""(?:url\(|@import\s+)\s*["']?([^"')]+)""", style)


@pytest.mark.docs
def test_no_page_refers_to_another_host_for_scripts_styles_fonts_or_images(built: Path) -> None:
    fetched = {}
    for page in built.rglob("*.html"):
        read = _Reader(page.read_text())
        fetched[page] = read.fetched
        # For this class the theme fetches a library that draws diagrams.
        assert "mermaid" not in read.classes, page
    for style in built.rglob("*.css"):
        fetched[style] = _addresses(style.read_text())
    assert sum(map(len, fetched.values())) > 300
    for page, addresses in fetched.items():
        elsewhere = [address for address in addresses if re.match(r"(\w+:)?//", address)]
        assert elsewhere == [], page


@pytest.mark.parametrize("script", ["cost.js", "filter.js"])
def test_scripts_of_the_site_ask_nobody_for_anything(script: str) -> None:
    code = (DOCS / script).read_text()
    assert not re.search(r"//\w|https?:|fetch\(|XMLHttpRequest|WebSocket|\bimport\b", code.replace("// ", ""))


@pytest.mark.docs
@pytest.mark.parametrize("path", [path for path in EXAMPLES if not path.endswith(".md")])
def test_every_example_is_shown_on_a_page_as_the_file_is(path: str, built: Path) -> None:
    assert f"](../{path})" in (DOCS / "examples.md").read_text()
    on_its_page = [code.strip() for code in _Reader((built / path / "index.html").read_text()).code]
    if path.endswith(".ipynb"):
        cells = json.loads((ROOT / path).read_text())["cells"]
        code = [cell for cell in cells if cell["cell_type"] == "code"]
        parts = [cell["source"] for cell in code]
        parts += [output["text"] for cell in code for output in cell["outputs"]]
        assert sorted(on_its_page) == sorted("".join(part).strip() for part in parts)
        return
    assert (ROOT / path).read_text().strip() in on_its_page
    readme = built / Path(path).parent / "index.html"
    if f"{Path(path).parent}/README.md" in EXAMPLES:
        shown = [code.strip() for code in _Reader(readme.read_text()).code]
        assert (ROOT / path).read_text().strip() in shown


def test_every_folder_of_examples_is_on_the_page_of_the_examples() -> None:
    for path in EXAMPLES:
        if path.endswith("README.md"):
            assert f"](../{path})" in (DOCS / "examples.md").read_text()


@pytest.mark.docs
def test_examples_of_docstrings_are_shown_as_code(built: Path) -> None:
    page = "".join(each.read_text() for each in sorted(built.glob("api*/index.html")))
    assert "<blockquote" not in page, "as Markdown takes lines that begin with >>>"
    hooks = {name for name in dir(keras.callbacks.Callback) if not name.startswith("_")}
    assert not hooks & set(re.findall(r'id="keras_preempt\.\w+\.(\w+)"', page)), "Keras calls them"
    shown = [code.partition("\n")[0] for code in _Reader(page).code]
    for public in (keras_preempt.PreemptionCallback, keras_preempt.TerminationConfig, FakeGcs):
        example = re.search(r"Example:\n +(.*)\n", public.__doc__ or "")
        assert example is not None
        assert example[1] in shown


def test_pages_link_to_the_repository_once_its_address_is_known() -> None:
    hooks = program("docs/site_hooks.py")

    def config(address: str) -> SimpleNamespace:
        return SimpleNamespace(extra={"repository": address}, copyright=None)

    unknown = config("")
    assert hooks.address(unknown, "examples/digits.py") is None
    assert "href" not in hooks.on_config(unknown).copyright
    ours = "https://example.org/keras-preempt"
    known = config(f"{ours}/")
    assert hooks.address(known, "examples/digits.py") == f"{ours}/blob/main/examples/digits.py"
    assert f'href="{ours}"' in hooks.on_config(known).copyright


def test_the_repositorys_address_is_in_one_place() -> None:
    found = [*ROOT.glob("*.*"), *DOCS.glob("*.md"), *(ROOT / example for example in EXAMPLES)]
    address = re.compile(r"github\.com/[\w-]+/keras-preempt")
    named = [path.name for path in found if path.is_file() and address.search(path.read_text())]
    assert set(named) <= {"mkdocs.yml"}


@pytest.mark.docs
def test_a_picture_is_shown_in_the_readers_scheme_and_width(built: Path) -> None:
    page = (built / "index.html").read_text()
    for scheme in ("light", "dark"):
        assert f'src="images/timeline-{scheme}.svg#only-{scheme}"' in page
        assert f'media="(max-width: 600px)" srcset="images/timeline-narrow-{scheme}.svg"' in page
    report = (built / "report" / "index.html").read_text()
    assert 'src="../images/report-dark.png#only-dark"' in report


TABLE = (
    "<p><code>a-b</code></p><table><thead><tr><th>when</th><th>what &amp; <code>why</code></th></tr></thead>"
    '<tbody><tr><td>now</td><td class="x"><code>--save-every 10min</code> &lt;br&gt;<br><a href="#">x</a></td></tr>'
    "<tr><td>a</td><td>b</td></tr></tbody></table><!-- end --><p>&#182;</p>"
)


def test_output_in_columns_keeps_its_lines_and_a_long_line_is_wrapped() -> None:
    page = program("docs/site_tables.py").on_page_content
    block = '<div class="language-text highlight"><pre><span></span><code>{}\n</code></pre></div>'
    for output in ("what   ratio\n----  -----\na step  0.29", "runs/\n├── run.json\n└── events/"):
        assert 'class="language-text columns highlight"' in page(block.format(output), None, None, None)
    for output in ("VERDICT: identical (56 tensors; 0 steps lost)\nEnd", "Saved\nEnd\nsteps   2"):
        assert page(block.format(output), None, None, None) == block.format(output)


def test_cells_know_their_column_and_code_in_tables_is_broken_between_words_only() -> None:
    written = program("docs/site_tables.py").on_page_content(TABLE, None, None, None)
    assert '<td data-label="when">now</td><td data-label="what why" class="x">' in written.replace("  ", " ")
    assert '<code><span class="word">--save-every</span> 10min</code>' in written
    assert "<p><code>a-b</code></p>" in written, "outside of tables nothing is changed"
    plain = re.sub(r' data-label="[^"]*"|<span class="word">|</span>', "", written)
    assert plain == TABLE


@pytest.mark.parametrize(("cell", "short"), [("exact (3)", True), ("exact, if nothing else draws", False)])
def test_a_table_of_short_cells_stays_one_on_a_phone_and_its_long_names_can_be_broken(
    cell: str, short: bool
) -> None:
    row = f"<td><code>tf.random.stateless_* PreemptionCheckpointHandler</code></td><td>{cell}</td><td>-</td>"
    head = "<table><thead><tr><th></th><th>a</th><th>b</th></tr></thead><tbody><tr>"
    table = f"{head}{row}</tr></tbody></table>"
    written = program("docs/site_tables.py").on_page_content(table, None, None, None)
    assert written.startswith("<table data-short>") is short
    assert ("Preemption<wbr>Checkpoint<wbr>Handler" in written) is short
    assert ("tf.<wbr>random.<wbr>stateless_*" in written) is short


def rows_of(name: str) -> list[list[str]]:
    lines = (ROOT / f"docs/{name}.md").read_text().splitlines()
    return [line.strip("| ").split(" | ") for line in lines if line[:2] == "| "]


def test_the_last_column_of_the_gallery_has_no_long_cell() -> None:
    rows = rows_of("gallery")
    assert len(rows) > 50
    assert max(len(cell.strip()) for row in rows for cell in row[2:]) <= 16


def test_the_script_of_the_filter_knows_every_column_and_verdict_of_the_tested_combinations() -> None:
    script = (DOCS / "filter.js").read_text()
    rows = [row for row in rows_of("tested-combinations") if row[0] != "trained"]
    assert len(rows) > 50
    for row in rows:
        for part in row[1].split("; "):
            columns, _, verdict = part.rpartition(": ")
            assert verdict in ("exact", "exact if", "not exact", "refused", "Keras fails", "not run"), row
            assert all(f'"{column}"' in script for column in columns.split(", ") if column), row
