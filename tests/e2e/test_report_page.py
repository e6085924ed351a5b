"""The report in a real browser: Debian's chromium, no network."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, sync_playwright

from ray_cfnet.report.page import write_report
from tests.unit.helpers import people
from tests.unit.outputs import explained_output
from tests.unit.test_report import HOSTILE, replaced

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUIET = ["--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update"]

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium (make browser)")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("page")
    for day in range(3):
        rows = people(600, seed=day)
        run = explained_output(directory, {f"2026-11-{day + 10}": replaced(rows, "note", [HOSTILE] * 600)})
        manifest = directory / "out" / "_runs" / run["run_id"] / "manifest.json"
        # A night apart: within the same second their order would be that of their ids.
        manifest.write_text(json.dumps({**run, "finished_at": f"2026-11-{day + 11}T04:20:00+00:00"}))
    return Path(write_report(str(directory / "out"), run["run_id"], segments=["gender", "note"]))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_playwright() as playwright:
        # Chromium's sandbox needs rights that containers and root do not have; the page is our own file.
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", *QUIET])
        yield opened
        opened.close()


@pytest.fixture
def opened(browser: Any, report: Path, request: pytest.FixtureRequest) -> Iterator[Page]:
    """The page in a window of the given width and colours; any complaint of the browser fails the test."""
    width, scheme = getattr(request, "param", (1200, "light"))
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True)
    page, complaints = context.new_page(), []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "request", lambda asked: complaints.append(asked.url) if not asked.url.startswith(("file:", "data:")) else None
    )
    page.goto(report.as_uri())
    yield page
    assert complaints == []
    context.close()


def test_charts_have_marks_that_say_what_they_show(opened: Page) -> None:
    charts = opened.locator("svg.marks")
    assert charts.count() >= 8
    marks = "[role=graphics-symbol]:not([aria-roledescription=axis])"
    for number in range(charts.count()):
        assert charts.nth(number).locator(marks).count() > 0
    sizes = opened.eval_on_selector_all(f"svg {marks}", "all => all.map(one => one.getBoundingClientRect().height)")
    assert all(size > 0 for size in sizes)
    opened.locator(f"svg {marks}").first.hover()
    assert "2026" in opened.locator("#tip").inner_text()


def test_no_value_of_the_data_runs(opened: Page) -> None:
    assert opened.evaluate("window.hacked") is None
    assert opened.locator("script").count() == 1
    assert opened.get_by_text(HOSTILE).count() > 0, "shown as it is"


def test_search_leaves_the_samples_that_have_every_word(opened: Page) -> None:
    samples = opened.locator(".samples > li")
    texts = samples.all_inner_texts()
    assert len(texts) == 20
    wanted = texts[7].splitlines()[0]
    opened.get_by_role("searchbox").fill(f"{wanted.upper()} ")
    shown = [sample for sample in samples.all() if sample.is_visible()]
    assert len(shown) == sum(all(word in text for word in wanted.split()) for text in texts)
    assert opened.locator("#found").inner_text() == f"{len(shown)} of 20 shown"
    opened.get_by_role("searchbox").fill("no such thing")
    assert not any(sample.is_visible() for sample in samples.all())


def test_search_finds_words_of_the_sentences(opened: Page) -> None:
    samples = opened.locator(".samples > li")
    sentences = [sample.locator("p").first.inner_text() for sample in samples.all()]
    for words in ("To get change housing", "no way found"):
        opened.get_by_role("searchbox").fill(words)
        shown = [sample.locator("p").first.inner_text() for sample in samples.all() if sample.is_visible()]
        wanted = [one for one in sentences if all(word in one.lower() for word in words.lower().split())]
        assert 0 < len(wanted) < 20
        assert shown == wanted


def background(page: Page) -> str:
    return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))


@pytest.mark.parametrize("opened", [(1200, "dark")], indirect=True)
def test_dark_is_dark_and_can_be_switched(opened: Page) -> None:
    bar = "getComputedStyle(document.querySelector('svg [aria-roledescription=bar]')).fill"
    dark, dark_bar = background(opened), opened.evaluate(bar)
    opened.get_by_role("button").click()
    assert background(opened) != dark
    assert opened.evaluate(bar) != dark_bar
    opened.get_by_role("button").click()
    assert background(opened) == dark


@pytest.mark.parametrize("opened", [(360, "light"), (768, "light"), (1400, "dark")], indirect=True)
def test_no_width_scrolls_sideways(opened: Page) -> None:
    assert opened.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    groups = opened.locator(".segment .scroll").first
    assert groups.evaluate("one => one.scrollWidth <= one.clientWidth"), "no figure is out of sight"


@pytest.mark.parametrize("opened", [(1200, "dark")], indirect=True)
def test_paper_is_white(opened: Page) -> None:
    opened.emulate_media(media="print", color_scheme="dark")
    assert background(opened) == "rgb(255, 255, 255)"
    assert not opened.get_by_role("button").is_visible()
