"""The page in a real browser: no console errors, no horizontal scrolling, in all sizes, light and dark, and printed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from l2l_nas.report.blocks import TakenApart
from l2l_nas.report.html.view import render_page
from l2l_nas.space.architecture import format_choices
from tests.debian import install
from tests.report.examples import small_pool
from tests.report.pages import card_of_pool, every_state, hostile_card, random_trials, summary_of
from tests.report.test_blocks import ORIGINAL, RESULT, SIZES

pytestmark = pytest.mark.slow

# a whole picture, of one pixel: what is no picture would be an error in the console

APART = TakenApart.from_json({**RESULT, "sizes": SIZES, "original": ORIGINAL})

# contrast with the background, at least: of text, and of marks (WCAG 2.2, 1.4.3 and 1.4.11)
CONTRAST, OF_MARKS = 4.5, 3.0
# luminance and contrast as WCAG 2.2 defines them, of each element with words of its own
MEASURE = """
const light = (text) => {
  const found = text.match(/[\\d.]+/g).map(Number);
  const part = (value) => { value /= 255; return value <= .04045 ? value / 12.92 : ((value + .055) / 1.055) ** 2.4; };
  return { value: .2126 * part(found[0]) + .7152 * part(found[1]) + .0722 * part(found[2]), alpha: found[3] ?? 1 };
};
const behind = (element) => {
  for (let at = element; at; at = at.parentElement) {
    const found = light(getComputedStyle(at).backgroundColor);
    if (found.alpha === 1) return found.value;
    if (found.alpha > 0) return null;
  }
  return light(getComputedStyle(document.body).backgroundColor).value;
};
const weak = [];
for (const element of document.querySelectorAll("body *:not(svg *)")) {
  const words = [...element.childNodes].filter((node) => node.nodeType === 3 && node.data.trim());
  if (!words.length || !element.checkVisibility()) continue;
  const ground = behind(element), ink = light(getComputedStyle(element).color).value;
  if (ground === null) continue;
  const ratio = (Math.max(ground, ink) + .05) / (Math.min(ground, ink) + .05);
  const least = arguments[element.matches(".glyph") ? 1 : 0];
  if (ratio < least) weak.push(`${ratio.toFixed(2)} ${element.tagName} ${words[0].data.trim().slice(0, 40)}`);
}
const page = document.documentElement;
return { width: page.scrollWidth, visible: page.clientWidth, weak: weak.slice(0, 5),
         paper: getComputedStyle(document.body).backgroundColor };
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[webdriver.Chrome]:
    if not shutil.which("chromium") or not shutil.which("chromedriver"):
        install("chromium", "chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    profile = tmp_path_factory.mktemp("profile")
    for word in (
        "headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking",
        "disable-component-update", "disable-sync", "disable-dev-shm-usage", f"user-data-dir={profile}",
    ):  # fmt: skip
        options.add_argument(f"--{word}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    made = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
    yield made
    made.quit()


def pages() -> dict[str, str]:
    card = card_of_pool()
    many = random_trials(card, 30)
    deep = card_of_pool(small_pool(90))
    forged = hostile_card()
    return {
        "finished": render_page(summary_of(card, many, num_finalists=4)),
        "every state": render_page(summary_of(card, every_state(many))),
        "nothing yet": render_page(summary_of(card, until="space", running_at=101.0)),
        "deep": render_page(summary_of(deep, random_trials(deep, 30), num_finalists=3)),
        "3,000 trials": render_page(summary_of(card, random_trials(card, 3000), num_finalists=8)),
        "taken apart": render_page(replace(summary_of(card, many), apart=APART)),
        "hostile": render_page(summary_of(forged, random_trials(forged, 30), num_finalists=3)),
    }


PAGES = pages()


def show(browser: webdriver.Chrome, page: str, folder: Path, *, width: int, scheme: str, medium: str = "") -> dict:
    """Open a page; what is to be known of it."""
    path = folder / "page.html"
    path.write_text(page)
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": medium, "features": features})
    browser.get(path.as_uri())
    return browser.execute_script(MEASURE, CONTRAST, OF_MARKS)


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
def test_a_page_fits_its_window_is_readable_and_makes_no_errors(browser, tmp_path, name, width, scheme) -> None:
    found = show(browser, PAGES[name], tmp_path, width=width, scheme=scheme)
    assert browser.get_log("browser") == []
    assert found["width"] <= found["visible"] <= width
    assert found["weak"] == []
    assert found["paper"] == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 27)"}[scheme]


@pytest.mark.parametrize("name", PAGES)
def test_a_printed_page_is_as_wide_as_the_paper_and_light(browser, tmp_path, name) -> None:
    found = show(browser, PAGES[name], tmp_path, width=794, scheme="dark", medium="print")
    assert found["width"] <= found["visible"]
    assert found["weak"] == []
    assert found["paper"] == "rgb(255, 255, 255)"


def test_the_script_writes_what_a_page_of_many_trials_leaves_out(browser, tmp_path) -> None:
    show(browser, PAGES["3,000 trials"], tmp_path, width=1400, scheme="light")
    card, records = card_of_pool(), random_trials(card_of_pool(), 3000)
    cells = browser.execute_script(
        "const rows = [...document.querySelectorAll('#trials tbody tr')];"
        "return rows.map((row) => row.lastElementChild.textContent.trim())"
    )
    assert cells == [format_choices(record.architecture, is_whole=True) for record in records]
    heads = browser.execute_script(
        "const [head, row] = ['thead tr', 'tbody tr'].map((one) => document.querySelector(`#trials ${one}`));"
        "return [head, row].map((one) => [...one.cells].slice(0, -1).map((cell) => cell.className))"
    )
    assert heads[0] == heads[1]
    dot = browser.find_element(By.CSS_SELECTOR, "#curves svg.plot circle.trial")
    number = int(dot.get_attribute("data-trial"))
    browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", dot)
    browser.execute_script(
        "const at = arguments[0].getBoundingClientRect();"
        "arguments[0].dispatchEvent(new PointerEvent('pointermove', {bubbles: true, clientX: at.x, clientY: at.y}))",
        dot,
    )
    tip = browser.find_element(By.ID, "tip").text
    assert tip.startswith(f"Trial {number}\n")
    assert format_choices(records[number].architecture, is_whole=True) in tip
    assert len(card.positions) == len(records[0].architecture.choices)


def test_a_dot_shows_its_trial_and_a_click_its_row(browser, tmp_path) -> None:
    show(browser, PAGES["finished"], tmp_path, width=1400, scheme="light")
    tip = browser.find_element(By.ID, "tip")
    assert not tip.is_displayed()
    dot = browser.find_element(By.CSS_SELECTOR, "#curves svg.plot circle[data-trial]")
    number = dot.get_attribute("data-trial")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", dot)

    def is_shown(_) -> bool:
        """A browser that is still at work may miss a move of the mouse."""
        webdriver.ActionChains(browser).move_to_element_with_offset(dot, 60, 60).move_to_element(dot).perform()
        return tip.is_displayed()

    WebDriverWait(browser, 20).until(is_shown)
    assert f"trial {number}" in tip.text.lower()
    webdriver.ActionChains(browser).click(dot).perform()
    row = browser.find_element(By.CSS_SELECTOR, "#trials tr.picked")
    assert row.get_attribute("data-trial") == number
    assert row.is_displayed()
    assert browser.get_log("browser") == []


def test_a_finalist_s_dot_shows_what_both_tables_have_of_it(browser, tmp_path) -> None:
    show(browser, PAGES["finished"], tmp_path, width=1400, scheme="light")
    tip = browser.execute_script(
        "const dot = document.querySelector('#pareto circle.front');"
        "dot.scrollIntoView({block: 'center', behavior: 'instant'});"
        "const at = dot.getBoundingClientRect();"
        "dot.dispatchEvent(new PointerEvent('pointermove', {bubbles: true, clientX: at.x, clientY: at.y}));"
        "return [dot.dataset.trial, document.getElementById('tip').innerText]"
    )
    number, text = tip
    lines = text.split("\n")
    assert lines[0] == f"Trial {number}"
    names = [line.partition(":")[0] for line in lines[1:]]
    assert {"accuracy, validation", "accuracy, test", "outcome", "architecture"} <= set(names)
    assert len(names) == len(set(names))
