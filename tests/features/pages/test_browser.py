"""The pages in a real browser, opened from disk. `.ci/chromium` installs it; CI requires it."""

import os

import pytest
from selenium.webdriver.common.keys import Keys

from pipeline.report.render import render, render_all
from tests.features.pages.test_method_list import many
from tests.support import browser as browsers
from tests.support import golden

if not (browsers.CHROMIUM and browsers.DRIVER) and not os.environ.get("PTE_PIPELINE_BROWSER"):
    pytest.skip("needs chromium and chromium-driver: .ci/chromium", allow_module_level=True)

pytestmark = pytest.mark.slow

WIDTHS, SCHEMES = (1920, 1400, 1200, 800, 390, 320), ("light", "dark")


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """A workspace's folder `build/` with pages of all records and the index."""
    folder = tmp_path_factory.mktemp("workspace") / "build"
    files = {f"{n}/report.html": render(r, golden.sources()) for n, r in golden.records().items()}
    for name, made in files.items():
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_bytes(made["report.html"])
        (folder / name).with_name("modules.html").write_bytes(made["modules.html"])
    for name, content in render_all(golden.entries(), golden.timeline()).items():
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    with browsers.browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


PAGES = ["index.html", *(f"{name}/report.html" for name in golden.records())]


@pytest.fixture
def opened(chromium, build):
    def open(name, *arguments, **settings):
        chromium.open(build / name, *arguments, **settings)
        return chromium

    return open


@pytest.mark.parametrize("name", PAGES)
def test_a_page_renders_from_disk_alone_and_without_complaints(opened, build, name):
    page = opened(name)
    asked = page.requests()
    assert asked and {url.partition(":")[0] for url in asked} <= {"file", "data"}
    assert [url for url in asked if url.startswith("file")] == [(build / name).as_uri()]
    assert page.console() == []
    assert page.run("return document.readyState") == "complete"
    assert page.run("return document.querySelectorAll('h1, table').length") >= 2
    assert page.run("return document.compatMode") == "CSS1Compat"


_OVERFLOW = """
const width = document.documentElement.clientWidth;
const found = [];
if (document.documentElement.scrollWidth > width) found.push("the page scrolls sideways");
const shown = (e) => e.checkVisibility() && e.getClientRects().length;
for (const e of document.querySelectorAll("body *")) {
  if (!shown(e) || e.closest(".scroll, svg")) continue;
  const box = e.getBoundingClientRect();
  if (box.right > width + 1 || box.left < -1) found.push(`beyond the page: ${e.textContent}`);
  const style = getComputedStyle(e);
  if (style.overflowX === "hidden" && e.scrollWidth > e.clientWidth) {
    found.push(`clipped: ${e.textContent}`);
  }
}
for (const text of document.querySelectorAll("svg text")) {
  if (!shown(text)) continue;
  const box = text.getBoundingClientRect();
  if (box.right > width + 1 || box.left < -1) found.push(`text beyond: ${text.textContent}`);
}
for (const box of document.querySelectorAll(".scroll")) {
  const more = Math.max(box.scrollWidth - box.clientWidth, box.scrollHeight - box.clientHeight);
  if (shown(box) && more > 1) {
    found.push(`cut: ${box.ariaLabel}`);
  }
}
for (const cell of document.querySelectorAll("td, th")) {
  if (shown(cell) && cell.scrollWidth > cell.clientWidth + 1) {
    found.push(`cell: ${cell.textContent}`);
  }
}
return found.slice(0, 5);
"""


@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_clipped_and_no_page_scrolls_sideways(opened, name):
    for width in WIDTHS:
        assert opened(name, width=width).run(_OVERFLOW) == [], width


def test_texts_in_pictures_have_the_size_of_texts(opened):
    """On a screen of any width, they are neither shrunk nor enlarged."""
    script = """
    return [...document.querySelectorAll("svg text")].filter((e) => e.checkVisibility())
      .map((e) => parseFloat(getComputedStyle(e).fontSize) * e.getScreenCTM().a)
    """
    for width in WIDTHS:
        sizes = opened("seq2seq-int8/report.html", width=width).run(script)
        assert sizes and min(sizes) >= 8.5 and max(sizes) <= 26, width


@pytest.mark.parametrize("name", PAGES)
def test_what_is_tapped_is_24_pixels_high(opened, name):
    script = """
    return [...document.querySelectorAll("a, button, input, summary")]
      .filter((e) => e.checkVisibility() && !e.closest("svg"))
      .filter((e) => e.getBoundingClientRect().height < 24).map((e) => e.textContent)
    """
    for width in (1400, 390):
        assert opened(name, width=width).run(script) == []


def test_charts_take_the_width_of_the_page(opened):
    script = """
    const whole = document.querySelector("main").getBoundingClientRect().width;
    return [...document.querySelectorAll(".chart svg, .timeline")]
      .filter((e) => e.checkVisibility()).map((e) => e.getBoundingClientRect().width - whole)
    """
    for name in ("seq2seq-int8/report.html", "index.html"):
        for width in (1400, 390):
            assert set(opened(name, width=width).run(script)) == {0}, (name, width)


def test_a_picture_of_bytes_has_views_to_choose_by_keys_without_a_script(opened):
    shown = """
    return [...document.querySelectorAll(".view")].filter((e) => e.checkVisibility())
      .map((e) => e.querySelector("svg").ariaLabel)
    """
    page = opened("seq2seq-int8/report.html", script=False, width=390)
    assert page.run(shown) == ["Bytes of the package by storage"]
    page.run("document.querySelector('fieldset input').focus()")
    for view in ("dtype", "method", "module"):
        page.press(Keys.ARROW_RIGHT)
        assert page.run(shown) == [f"Bytes of the package by {view}"]
        assert page.run(_OVERFLOW) == []


def test_a_tap_on_a_mark_says_what_it_is(opened):
    page = opened("seq2seq-int8/report.html", width=390)
    script = """
    const figure = document.querySelector("#delegation-section figure");
    const mark = figure.querySelector("title").parentElement;
    mark.dispatchEvent(new MouseEvent("click", {bubbles: true}));
    return [figure.querySelector("output").textContent, mark.querySelector("title").textContent];
    """
    said, title = page.run(script)
    assert said == title and said.startswith("encode: XnnpackBackend: 42 of 93 nodes")


def test_a_long_table_shows_its_first_rows_on_a_phone_and_the_others_when_asked(opened):
    script = """
    const rows = [...document.querySelectorAll("#left tbody tr")];
    return rows.filter((row) => row.checkVisibility()).length
    """
    page = opened("seq2seq-int8/report.html", width=390)
    assert page.run(script) == 8
    page.run("document.querySelector('#left .more').click()")
    assert page.run(script) == len(column(page, "left", 0))


@pytest.mark.parametrize("name", PAGES)
def test_dark_mode_is_dark(opened, name):
    script = """
    const style = getComputedStyle(document.body);
    const light = (colour) =>
      colour.match(/[0-9.]+/g).slice(0, 3).reduce((sum, part) => sum + Number(part), 0) / 765;
    return [light(style.backgroundColor), light(style.color)]
    """
    (paper, ink), (dark_paper, dark_ink) = (opened(name, scheme=s).run(script) for s in SCHEMES)
    assert paper > 0.9 and ink < 0.2
    assert dark_paper < 0.2 and dark_ink > 0.8


def test_every_colour_of_a_picture_is_one_of_the_style(opened):
    script = """
    return [...document.querySelectorAll("svg [fill], svg [stroke]")]
      .flatMap((e) => [e.getAttribute("fill"), e.getAttribute("stroke")])
      .filter((c) => c && !["none", "transparent"].includes(c) && !c.startsWith("var(--"))
    """
    for name in PAGES:
        assert opened(name).run(script) == []


def column(page, table, number):
    script = """
    return [...document.querySelector(`#${arguments[0]} tbody`).rows].filter((r) => !r.hidden)
      .map((r) => r.cells[arguments[1]].textContent.trim())
    """
    return page.run(script, table, number)


def click(page, table, number):
    page.run(
        "document.querySelectorAll(`#${arguments[0]} th button`)[arguments[1]].click()",
        table,
        number,
    )


def order(page, table, number):
    script = "return document.querySelectorAll(`#${arguments[0]} th`)[arguments[1]].ariaSort"
    return page.run(script, table, number)


def test_a_table_sorts_by_text_and_back(opened):
    page = opened("index.html")
    as_it_came = column(page, "packages", 0)
    assert as_it_came[0] == "tcn-vulkan"
    click(page, "packages", 0)
    assert column(page, "packages", 0) == sorted(as_it_came)
    assert order(page, "packages", 0) == "ascending"
    click(page, "packages", 0)
    assert column(page, "packages", 0) == sorted(as_it_came, reverse=True)
    assert order(page, "packages", 0) == "descending"
    click(page, "packages", 0)
    assert column(page, "packages", 0) == as_it_came
    assert order(page, "packages", 0) is None


def test_a_table_sorts_figures_by_value_the_greatest_first(opened):
    page = opened("seq2seq-int8/report.html")
    click(page, "segments", 2)
    sizes = [int(text.replace(",", "")) for text in column(page, "segments", 2)]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] > 9_999 > sizes[-1]
    click(page, "calls", 3)
    errors = column(page, "calls", 3)
    assert errors[0].startswith("1.84") and errors[-1] == "0"
    click(page, "calls", 7)  # among ratios in dB, exact ones are best
    assert column(page, "calls", 7)[0] == "exact"


def test_cards_of_a_phone_sort_by_a_list(opened):
    choose = """
    const list = document.querySelector("#segments select");
    list.value = [...list.options].find((each) => each.text === arguments[0]).value;
    list.dispatchEvent(new Event("change"));
    """
    shown = "return document.querySelector('#segments select').checkVisibility()"
    assert not opened("seq2seq-int8/report.html").run(shown)
    page = opened("seq2seq-int8/report.html", width=390)
    assert page.run(shown)
    as_it_came = column(page, "segments", 2)
    page.run(choose, "bytes, greatest first")
    sizes = [int(text.replace(",", "")) for text in column(page, "segments", 2)]
    assert sizes == sorted(sizes, reverse=True)
    page.run(choose, "bytes, least first")
    assert order(page, "segments", 2) == "ascending"
    page.run(choose, "As it came")
    assert column(page, "segments", 2) == as_it_came and order(page, "segments", 2) is None


def test_a_second_column_takes_over(opened):
    page = opened("index.html")
    click(page, "packages", 0)
    click(page, "packages", 3)
    assert order(page, "packages", 0) is None and order(page, "packages", 3) == "descending"
    assert column(page, "packages", 0)[0] == "seq2seq-int8"


def test_tables_sort_by_keyboard(opened):
    page = opened("index.html")
    page.run("document.querySelector('#packages th button').focus()")
    page.press(Keys.ENTER)
    assert order(page, "packages", 0) == "ascending"
    page.press(Keys.SPACE)
    assert order(page, "packages", 0) == "descending"


def type_into_filter(page, table, words):
    page.run("document.querySelector(`#${arguments[0]} input`).focus()", table)
    page.press(Keys.CONTROL + "a")
    page.press(words)


def test_a_table_filters_by_all_words_in_any_order(opened):
    page = opened("seq2seq-int8/report.html")
    whole = len(column(page, "left", 0))
    type_into_filter(page, "left", "ENCODE view")
    assert [c.split()[0] for c in column(page, "left", 0)] == ["aten.view_copyin"]
    count = page.run("return document.querySelector('#left output').textContent")
    assert count == f"1 of {whole}"
    type_into_filter(page, "left", "nothing at all")
    assert column(page, "left", 0) == []
    type_into_filter(page, "left", Keys.BACKSPACE)
    assert len(column(page, "left", 0)) == whole


def test_sorting_keeps_what_the_filter_left(opened):
    page = opened("seq2seq-int8/report.html")
    type_into_filter(page, "segments", "delegates")
    few = column(page, "segments", 1)
    click(page, "segments", 2)
    assert sorted(column(page, "segments", 1)) == sorted(few)


def test_a_link_shows_the_actions_of_one_package(opened):
    page = opened("index.html", "#actions=vision")
    assert {name.partition("/")[0] for name in column(page, "actions", 1)} == {"vision"}


def test_a_link_to_a_line_marks_it(opened):
    page = opened("seq2seq-int8/report.html", "#models/seq2seq.py:34")
    target = "document.querySelector(':target')"
    assert "scaled_dot_product_attention" in page.run(f"return {target}.textContent")
    marked = page.run(f"return getComputedStyle({target}).backgroundColor")
    assert marked != page.run("return getComputedStyle(document.body).backgroundColor")
    assert page.run(f"return {target}.getBoundingClientRect().top") < 900


def test_every_link_of_a_page_leads_to_a_place_or_a_file(opened, build):
    script = """
    return [...document.querySelectorAll("a[href]")].map((a) => a.getAttribute("href"))
      .map((href) => [href, new URL(href, location).href])
    """
    for name in PAGES:
        for written, whole in opened(name).run(script):
            assert whole.startswith((build.parent.as_uri(), "about:")), written


def test_without_script_a_page_can_be_read(opened):
    page = opened("seq2seq-int8/report.html", script=False)
    assert page.run("return document.querySelectorAll('th button, .filter').length") == 0
    assert len(column(page, "left", 0)) > 20


def test_pictures_say_what_they_show(opened):
    script = """
    const titles = (e) => e.querySelectorAll("title").length;
    return [...document.querySelectorAll("svg")]
      .map((e) => [e.getAttribute("role"), e.getAttribute("aria-label"), titles(e)])
    """
    for role, label, titles in opened("seq2seq-int8/report.html").run(script):
        assert role == "img" and len(label) > 10 and titles > 1


def test_modules_are_opened_by_keys_and_fit_on_every_screen(opened):
    page = opened("vision/modules.html", "#method-classify", scheme="dark")
    assert page.console() == []
    page.run("document.querySelector('#method-classify summary').focus()")
    page.press(Keys.ENTER)
    assert page.run("return document.querySelectorAll('details[open]').length") == 1
    for width in (1400, 390, 320):
        page = opened("vision/modules.html", width=width)
        page.run("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        assert page.run(_OVERFLOW) == [], width
        low = "return [...document.querySelectorAll('a, summary')].map((e) => e.offsetHeight)"
        assert min(page.run(low)) >= 24


@pytest.fixture
def many_methods(chromium, tmp_path):
    page = tmp_path / "report.html"
    page.write_bytes(render(many(200))["report.html"])

    def open(anchor="", **settings):
        chromium.open(page, anchor, **settings)
        return chromium

    return open


def shown_methods(page):
    script = """
    return [...document.querySelectorAll(".methods > details")].filter((e) => e.checkVisibility())
      .map((e) => e.id)
    """
    return page.run(script)


def test_a_page_of_200_methods_is_filtered_by_verdict_words_and_link(many_methods):
    page = many_methods()
    # A page's load time grows with the number of elements.
    assert page.run("return document.querySelectorAll('*').length") < 40_000
    assert shown_methods(page)[0] == "method-layer_7" and len(shown_methods(page)) == 200
    page.run("document.querySelector('.filters input').focus()")
    page.press("layer_19")
    assert len(shown_methods(page)) == 11
    assert shown_methods(many_methods("#methods=failed")) == ["method-layer_7"]


def test_methods_are_opened_by_keys_and_found_in_closed_rows(many_methods):
    page = many_methods(width=390)
    assert page.run(_OVERFLOW) == []
    page.run("document.querySelector('.methods summary').focus()")
    page.press(Keys.ARROW_DOWN)
    page.press(Keys.ENTER)
    opened = "return [...document.querySelectorAll('.methods > details[open]')].map((e) => e.id)"
    assert page.run(opened) == ["method-layer_0"]
    assert page.run(_OVERFLOW) == []
    found = page.run("return window.find('is too large', false, false, true)")
    assert found
