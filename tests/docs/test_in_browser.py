"""Every page of the site in headless Chromium, on a phone, a tablet and a desk, light and dark: nothing is cut off.

`python -m tests.docs.test_in_browser` takes the screenshots in docs/images again.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs import browser, built_site
from tests.docs.pages import ROOT

pytestmark = pytest.mark.docs

IMAGES = ROOT / "docs" / "images"
WIDTHS = (390, 768, 1440)

#: Screenshots: page, width and height, whether dark.
SCREENSHOTS = {
    "site-first-page-1440-light": ("", 1440, 1000, False),
    "site-first-page-768-dark": ("", 768, 1000, True),
    "site-first-page-390-dark": ("", 390, 844, True),
    "site-comparison-390-light": ("comparison/", 390, 844, False),
    "site-comparison-1440-dark": ("comparison/", 1440, 1000, True),
    "site-notebook-768-light": ("examples/first_steps.ipynb/", 768, 1000, False),
    "site-cost-1440-dark": ("cost/", 1440, 1000, True),
    "site-cost-390-light": ("cost/", 390, 844, False),
    "site-guarantees-768-light": ("guarantees/", 768, 1000, False),
    "site-tested-combinations-1440-light": ("tested-combinations/", 1440, 1000, False),
    "site-tested-combinations-390-dark": ("tested-combinations/", 390, 844, True),
}

#: Names what is wrong with the page as it is laid out now.
PROBLEMS = """
(() => {
  const problems = [];
  const width = document.documentElement.clientWidth;
  if (document.scrollingElement.scrollWidth > width) problems.push("the page can be scrolled sideways");
  const scrolls = (element) => /auto|scroll/.test(getComputedStyle(element).overflowX);
  const scrollable = (element) =>
    element && element !== document.body && (scrolls(element) || scrollable(element.parentElement));
  const place = (element) => `<${element.tagName.toLowerCase()}> ${element.textContent.trim().slice(0, 50)}`;
  for (const element of document.querySelectorAll("article *, .md-nav .md-ellipsis")) {
    if (element.closest(".md-clipboard, svg, math") || element.checkVisibility && !element.checkVisibility()) continue;
    const box = element.getBoundingClientRect();
    if (!box.width || !box.height) continue;
    const beyond = element.closest("article") && (box.right > width + 1 || box.left < -1);
    if (beyond && !scrollable(element)) problems.push(`beyond the edge: ${place(element)}`);
    const style = getComputedStyle(element);
    const cuts = /hidden|clip/.test(style.overflowX) && element.scrollWidth > element.clientWidth + 1;
    if (cuts && element.textContent.trim()) problems.push(`cut off: ${place(element)}`);
  }
  for (const code of document.querySelectorAll("article td code")) {
    const walker = document.createTreeWalker(code, NodeFilter.SHOW_TEXT);
    for (let node; (node = walker.nextNode()); ) {
      for (const word of node.data.matchAll(/\\S+/g)) {
        const range = document.createRange();
        range.setStart(node, word.index);
        range.setEnd(node, word.index + word[0].length);
        if (new Set([...range.getClientRects()].map((box) => Math.round(box.top))).size > 1)
          problems.push(`broken inside a word: ${word[0]}`);
      }
    }
  }
  return [...new Set(problems)].slice(0, 9);
})()
"""

#: Names the words of an SVG that stand beyond its edges.
BEYOND_THE_PICTURE = """
(() => {
  const [, , width, height] = document.documentElement.getAttribute("viewBox").split(" ").map(Number);
  return [...document.querySelectorAll("text")].filter((text) => {
    const box = text.getBBox();
    return box.x < 0 || box.y < 0 || box.x + box.width > width || box.y + box.height > height;
  }).map((text) => text.textContent);
})()
"""

COMBINATIONS = '[...document.querySelectorAll("article tbody tr, article h2:not([id=legend]) + ul > li")]'
"""What tested-combinations.md lists: what is exact everywhere, and rows."""


@pytest.fixture(scope="module")
def page() -> Iterator[browser.Browser]:
    with browser.opened() as page:
        yield page


@pytest.fixture(scope="module")
def built(page: browser.Browser, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_site.build(tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="module")
def address(built: Path) -> Iterator[str]:
    with built_site.served(built) as place:
        yield place


def scheme(dark: bool) -> str:
    return f"document.body.dataset.mdColorScheme === '{'slate' if dark else 'default'}'"


def look_at(page: browser.Browser, address: str, path: str) -> list[str]:
    """What is wrong with a page at any width, light or dark."""
    wrong = []
    for dark in (False, True):
        page.show(WIDTHS[-1], dark=dark)
        page.open(f"{address}/{path}")
        page.wait_for(scheme(dark))
        for width in WIDTHS:
            page.show(width, dark=dark)
            with contextlib.suppress(AssertionError):  # The theme lays the page out again in its own time.
                page.wait_for(f"innerWidth === {width} && !{PROBLEMS.strip()}.length", 5)
            wrong += [
                f"/{path} at {width} px, {'dark' if dark else 'light'}: {each}" for each in page.run(PROBLEMS)
            ]
        elsewhere = [each for each in page.requests if not each.startswith((f"{address}/", "data:"))]
        wrong += [f"/{path} fetches {each}" for each in elsewhere]
    return wrong


def test_nothing_is_cut_off_on_any_page_nor_fetched_from_elsewhere(
    page: browser.Browser, address: str, built: Path
) -> None:
    paths = built_site.pages(built)
    assert len(paths) > 30
    assert [wrong for path in paths for wrong in look_at(page, address, path)] == []


def test_a_page_on_which_something_is_cut_off_is_noticed(page: browser.Browser, address: str) -> None:
    page.show(390, dark=False)
    page.open(f"{address}/guarantees/")
    assert page.run(PROBLEMS) == []
    for broken, found in {
        "<div style='width: 900px'>wide</div>": "the page can be scrolled sideways",
        "<p style='overflow: hidden; width: 40px; white-space: nowrap'>too long for it</p>": "cut off",
        "<table><tr><td style='width: 30px; display: block'><code style='word-break: break-all'>abcdefghijkl": "broken",
    }.items():
        page.run(
            f'document.querySelector("article").insertAdjacentHTML("beforeend", `<div id=x>{broken}</div>`)'
        )
        assert any(found in problem for problem in page.run(PROBLEMS)), broken
        page.run('document.getElementById("x").remove()')


@pytest.mark.parametrize("picture", sorted(IMAGES.glob("*.svg")), ids=lambda picture: picture.name)
def test_no_word_of_a_picture_is_cut_off(picture: Path, page: browser.Browser) -> None:
    page.open(picture.as_uri())
    assert page.run(BEYOND_THE_PICTURE) == []


def test_the_calculator_follows_what_is_typed(page: browser.Browser, address: str) -> None:
    page.show(1440, dark=False)
    page.open(f"{address}/cost/")
    result = 'document.querySelector(".cost dl").innerText'
    assert "97.9 %" in page.run(result)
    assert '"5min"' in page.run(result)
    _type(page, '[name="noticed"]', "100")
    assert "not needed" in page.run(result)
    _type(page, '[name="noticed"]', "")
    assert "Not a job" in page.run(result)
    _type(page, ".cost select", "Llama 3, 16,384 GPUs")
    assert "97.3 %" in page.run(result)
    assert "7.76 a day" in page.run(result)
    _type(page, '[name="memory_every"]', "103")
    assert "97.5 %" in page.run(result)
    assert "lose two neighbours at once" in page.run(result)
    _type(page, ".cost select", "8 spot machines")
    assert "97.9 %" in page.run(result)


def test_the_filter_shows_the_rows_that_are_asked_for(page: browser.Browser, address: str) -> None:
    page.show(1440, dark=False)
    page.open(f"{address}/tested-combinations/")
    shown = f"{COMBINATIONS}.filter(row => row.checkVisibility()).map(row => row.innerText)"
    everything = page.run(shown)
    assert len(everything) > 100
    _type(page, ".filter input", "lora")
    some = page.run(shown)
    assert 0 < len(some) < 10
    assert all("lora" in row.lower() for row in some)
    _type(page, ".filter input", "stateless_ outside")
    assert "random" in "".join(page.run(shown)), "words of the legend are found as well"
    _type(page, ".filter input", "lora")
    assert f"{len(some)} of {len(everything)}" in page.run('document.querySelector(".filter output").value')
    _type(page, ".filter input", "")
    _type(page, ".filter label:nth-of-type(3) select", "refused")
    assert all("refused" in row or "Keras fails" in row for row in page.run(shown))


def test_without_scripts_the_tables_and_the_examples_are_there(page: browser.Browser, address: str) -> None:
    with page.without_scripts():
        page.open(f"{address}/tested-combinations/")
        assert page.run(f"{COMBINATIONS}.length") > 100
        page.open(f"{address}/cost/")
        assert "needs JavaScript" in page.run('document.getElementById("cost").innerText')


def _type(page: browser.Browser, selector: str, value: str) -> None:
    found = f"document.querySelector('{selector}')"
    page.run(f"{found}.value = '{value}', {found}.dispatchEvent(new Event('input', {{bubbles: true}}))")


def take_screenshots() -> None:
    program = browser.find()
    assert program is not None, "install chromium"
    with contextlib.ExitStack() as around:
        folder = Path(around.enter_context(tempfile.TemporaryDirectory()))
        address = around.enter_context(built_site.served(built_site.build(folder)))
        page = around.enter_context(browser.Browser(program))
        for name, (path, width, height, dark) in SCREENSHOTS.items():
            page.show(width, dark=dark, height=height)
            page.open(f"{address}/{path}")
            page.wait_for(scheme(dark))
            page.screenshot(IMAGES / f"{name}.png")
            smaller(IMAGES / f"{name}.png")


def smaller(picture: Path, colours: int = 96) -> None:
    """Keeps so many colours: 96 are enough for text and a few shapes."""
    from PIL import Image

    with Image.open(picture) as opened:
        smaller = opened.convert("RGB").quantize(colours, dither=Image.Dither.NONE)
    smaller.save(picture, optimize=True)


def test_every_screenshot_is_kept() -> None:
    kept = {picture.stem for picture in IMAGES.glob("site-*.png")}
    assert kept == set(SCREENSHOTS)


if __name__ == "__main__":
    sys.exit(take_screenshots())
