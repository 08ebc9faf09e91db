"""The page of a report in headless Chromium, on a phone, a tablet and a desk, light and dark: nothing is cut off.

The run is a real one (`tests/report/record.py`). `python -m tests.report.test_page_in_browser` takes the screenshots in
docs/images again.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.report.loading import Loader
from keras_preempt.report.page import page as page_of
from tests.docs import browser
from tests.docs.test_in_browser import IMAGES, WIDTHS, smaller
from tests.report.record import RECORDED

pytestmark = pytest.mark.docs

#: Screenshots: width and height, whether dark.
SCREENSHOTS = {
    "report-light": (1440, 1000, False),
    "report-dark": (1440, 1000, True),
    "report-768-light": (768, 1000, False),
    "report-narrow-light": (390, 1250, False),
    "report-narrow-dark": (390, 1250, True),
}

#: Names what is wrong with the page as it is laid out now. Nothing but a wide table may be scrolled.
PROBLEMS = """
(() => {
  const problems = [], width = document.documentElement.clientWidth;
  if (document.scrollingElement.scrollWidth > width) problems.push("the page can be scrolled sideways");
  const place = (element) => `<${element.tagName.toLowerCase()}> ${element.textContent.trim().slice(0, 50)}`;
  for (const element of document.querySelectorAll("body *")) {
    const box = element.getBoundingClientRect();
    if (!box.width || !box.height || element.closest("title, defs")) continue;
    if (box.right > width + 1 || box.left < -1) problems.push(`beyond the edge: ${place(element)}`);
    if (element.closest("svg")) continue;
    if (element.scrollWidth > element.clientWidth + 1 && getComputedStyle(element).display !== "inline")
      problems.push(`cut off: ${place(element)}`);
  }
  for (const picture of document.querySelectorAll("svg.timeline")) {
    const frame = picture.getBoundingClientRect();
    if (!frame.width) continue;
    const words = [...picture.querySelectorAll("text")].map((text) => [text, text.getBoundingClientRect()]);
    for (const [text, box] of words) {
      if (box.height < 11) problems.push(`too small to read: ${place(text)}`);
      if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.bottom > frame.bottom + 1)
        problems.push(`beyond the picture: ${place(text)}`);
      const covers = (its) =>
        box.left < its.right && its.left < box.right && box.top + 2 < its.bottom && its.top + 2 < box.bottom;
      for (const [other, its] of words)
        if (other !== text && covers(its))
          problems.push(`over each other: ${place(text)} and ${place(other)}`);
    }
  }
  return [...new Set(problems)].slice(0, 9);
})()
"""


@pytest.fixture(scope="module")
def page() -> Iterator[browser.Browser]:
    with browser.opened() as page:
        yield page


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("page"))


def write(folder: Path) -> str:
    """Writes the page of the recorded run; returns its address."""
    file = folder / "report.html"
    file.write_text(page_of(Loader(open_store(str(RECORDED)), over=True).load(), "runs/digits"))
    return file.as_uri()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_cut_off_too_small_or_fetched(
    width: int, dark: bool, page: browser.Browser, address: str
) -> None:
    page.show(width, dark=dark)
    page.open(address)
    assert page.run(PROBLEMS) == []
    assert page.requests == [address]


def test_a_page_on_which_something_is_cut_off_is_noticed(page: browser.Browser, address: str) -> None:
    page.show(390, dark=False)
    page.open(address)
    for broken, found in {
        "<div style='width: 900px'>wide</div>": "the page can be scrolled sideways",
        "<p style='overflow: hidden; width: 40px; white-space: nowrap'>too long for it</p>": "cut off",
        "<svg class='timeline narrow' viewBox='0 0 3600 20'><text y=15>tiny</text></svg>": "too small",
        "<svg class='timeline narrow' viewBox='0 0 360 20'><text x=350 y=15>beyond": "beyond the picture",
        "<svg class='timeline narrow' viewBox='0 0 360 20'><text y=15>one</text><text y=16>two": "over each other",
    }.items():
        page.run(f'document.body.insertAdjacentHTML("beforeend", `<div id=x>{broken}</div>`)')
        assert any(found in problem for problem in page.run(PROBLEMS)), (broken, page.run(PROBLEMS))
        page.run('document.getElementById("x").remove()')


def test_on_a_phone_how_it_ended_comes_first(page: browser.Browser, address: str) -> None:
    page.show(390, dark=False)
    page.open(address)
    top = "(selector) => document.querySelector(selector).getBoundingClientRect().top"
    assert page.run(f'({top})(".ended") < ({top})(".figures")')
    assert page.run(f'({top})("td[data-key=end]") < ({top})("td[data-key=start]")')
    bottom = page.run('document.querySelector(".ended").getBoundingClientRect().bottom')
    assert bottom < 844, "on the first screen"


def test_a_lost_step_leads_to_how_it_was_lost(page: browser.Browser, address: str) -> None:
    page.show(1440, dark=False)
    page.open(address)
    for link in (".warn a", "svg.wide a:has(.curve.lost)"):
        page.run("location.hash = ''")
        page.run(
            f"document.querySelector('{link}').dispatchEvent(new MouseEvent('click', {{bubbles: true}}))"
        )
        page.wait_for("document.querySelector(':target')")
        event = page.run("document.querySelector(':target').innerText")
        assert "start 2 killed" in event
        assert "steps lost" in event
    leads = "link => document.getElementById(link.getAttribute('href').slice(1))"
    assert page.run(f"[...document.querySelectorAll('a')].every({leads})")


def test_every_screenshot_is_kept() -> None:
    assert {picture.stem for picture in IMAGES.glob("report-*.png")} == set(SCREENSHOTS)


def take_screenshots() -> None:
    program = browser.find()
    assert program is not None, "install chromium"
    with tempfile.TemporaryDirectory() as folder, browser.Browser(program) as page:
        address = write(Path(folder))
        for name, (width, height, dark) in SCREENSHOTS.items():
            page.show(width, dark=dark, height=height)
            page.open(address)
            page.screenshot(IMAGES / f"{name}.png")
            smaller(IMAGES / f"{name}.png", 192)


if __name__ == "__main__":
    sys.exit(take_screenshots())
