"""The report in headless Chromium: display, clicks, typing."""

from __future__ import annotations

import base64
import csv
import itertools
import json
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest

from penstock.pipeline.config.build import build_plugin
from penstock.pipeline.output.cells import write_cells
from penstock.pipeline.output.maps import write_outlines
from penstock.pipeline.output.tables import RELEASES
from penstock.pipeline.reporting.data_protection import write_statement
from penstock.pipeline.reporting.live import watch
from penstock.pipeline.reporting.page import write_report
from penstock.pipeline.spaces.base import Space
from tests.tools.report_runs import account, experiment_folder, run_folder, trace_folder

pytestmark = pytest.mark.integration

DESKTOP, PHONE = (1200, 900), (390, 800)


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """One headless Chromium for all tests here."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed: .ci/browser does it")
    program, control = shutil.which("chromium"), shutil.which("chromedriver")
    if not program or not control:
        pytest.skip("chromium and chromium-driver are not installed: .ci/browser does it")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        "--no-first-run",
        # The browser itself asks for nothing either.
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-quic",
        f"--user-data-dir={tmp_path_factory.mktemp('chromium')}",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(control))
    browser.set_script_timeout(60)
    yield browser
    browser.quit()


class Page:
    """A report that is open."""

    def __init__(
        self, driver: Any, address: str, size: tuple[int, int] = DESKTOP, theme: str = "light", has_script: bool = True
    ) -> None:
        self.driver = driver
        command = driver.execute_cdp_cmd
        metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size == PHONE}
        command("Emulation.setDeviceMetricsOverride", metrics)
        features = [{"name": "prefers-color-scheme", "value": theme}]
        command("Emulation.setEmulatedMedia", {"media": "screen", "features": features})
        driver.get_log("browser")
        driver.get_log("performance")
        driver.get(address)
        if has_script:
            self.until(lambda: self.run("return document.documentElement.dataset.ready !== undefined"))

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def find(self, selector: str) -> list[Any]:
        return self.driver.find_elements("css selector", selector)

    def one(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def texts(self, selector: str) -> list[str]:
        return self.run("return [...document.querySelectorAll(arguments[0])].map(n => n.textContent)", selector)

    def until(self, condition: Callable[[], Any], seconds: float = 15) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "the page did not get there in time"
            time.sleep(0.05)

    def windows_drawn(self, chart: str, line: int = 0) -> int:
        """Points of a line: one for each window shown."""
        # In one call: a live page may replace its charts between two.
        path = self.run(
            "return document.querySelectorAll(arguments[0])[arguments[1]].getAttribute('d')",
            f"[data-chart='{chart}'] svg.chart path.line",
            line,
        )
        return path.count("M") + path.count("L")


def faults(page: Page) -> list[tuple[str, str]]:
    """Serious faults that axe finds in a page."""
    axe = pytest.importorskip("axe_core_python", reason="axe-core-python is not installed: .ci/browser does it")
    page.run((Path(axe.__file__).parent / "axe.min.js").read_text(encoding="utf-8"))
    actual = page.driver.execute_async_script("axe.run(document).then(arguments[0])")
    assert len(actual["passes"]) > 15
    grave = [v for v in actual["violations"] if v["impact"] in ("serious", "critical")]
    return [(v["id"], v["nodes"][0]["html"]) for v in grave]


BUDGET = tuple(
    account("landmark_budget", name, w, value, status="provisional")
    for w in range(1, 25)
    for name, value in (("epsilon", 0.5), ("budget_spent", 0.5 * w), ("budget_left", 12 - 0.5 * w))
)
GRID = {"type": "grid", "south": 0, "north": 1, "west": 10, "east": 12, "rows": 2, "columns": 2}
CELLS = ("r00c00", "r00c01", "r01c00", "r01c01")


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    risk = tuple(
        account("reconstruction", "bound", w, s / 50, subject=f"target {s}", unit="probability")
        for w in range(1, 25)
        for s in range(30)
    )
    folder = tmp_path_factory.mktemp("run")
    run_folder(folder, cells=CELLS, space=GRID, accounts=BUDGET, operator_accounts=risk, refused=(6,))
    return write_report(folder)[0]


@pytest.fixture
def page(driver, report) -> Page:
    return Page(driver, report.as_uri())


def test_opens_from_disk_without_a_word_and_without_the_network(page, report):
    assert page.driver.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in page.driver.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert [url for url in asked if not url.startswith("data:")] == [report.as_uri()]


def test_every_window_cell_and_landmark_has_its_mark(page):
    for chart in ("counts", "error", "utility-kendall_tau", "landmark_budget-Budget"):
        assert page.windows_drawn(chart) == 24
        # Windows 3 and 4 follow each other and are one mark; 9 is another.
        assert len(page.find(f"[data-chart='{chart}'] .landmark")) == 2
    assert len(page.find("[data-chart='counts'] svg.chart path.line")) == 2
    assert len(page.find("[data-map]")) == 3
    assert len(page.find("[data-map] .cell")) == 3 * 4
    assert len(page.find(".toolbar .refused-mark")) == 1
    assert len(page.find("[data-chart^='reconstruction'] path.band")) == 2


def test_values_are_said_as_their_measure_is(page):
    cases = [({}, 34.31), ({"people": True}, 34.31), ({"people": True}, 1234.4), ({"share": True}, 0.1249)]
    cases += [({"share": True}, 0.0123), ({"people": True}, 4.285), ({}, 0.09852)]
    told = page.run("return arguments[0].map(([how, value]) => said(how, value))", cases)
    assert told == ["34.3", "34", "1,234", "12 %", "1.2 %", "4.3", "0.0985"]


def test_stacked_amounts_add_up(page):
    tops = page.run(
        "return [...document.querySelectorAll(`[data-chart='landmark_budget-Budget'] svg.chart path.line`)]"
        ".map(p => new Set([...p.getAttribute('d').matchAll(/[ML][\\d.]+ ([\\d.]+)/g)].map(m => m[1])).size)"
    )
    # After the constant ε: spent climbs window by window; what is left on top of it ends at one height everywhere.
    assert tops == [1, 24, 1]


def test_the_slider_moves_every_chart_and_map(page):
    slider = page.one("input[type=range]")
    page.run("arguments[0].value = 0; arguments[0].dispatchEvent(new Event('input'))", slider)
    assert "00:00" in page.one(".toolbar output").text
    before = sorted(page.texts("[data-map='True'] title"))
    assert before == ["r00c00: 1", "r00c01: 2", "r01c00: 3", "r01c01: 4"]
    slider.send_keys("\ue014" * 2)  # the right arrow, twice
    assert "02:00" in page.one(".toolbar output").text
    assert "landmark" in page.one(".toolbar output").text
    assert "02:00" in slider.get_attribute("aria-valuetext")
    assert sorted(page.texts("[data-map='True'] title")) == ["r00c00: 3", "r00c01: 4", "r01c00: 5", "r01c01: 6"]
    assert sorted(page.texts("[data-map='Error'] title")) == [f"{cell}: 1" for cell in CELLS]
    assert page.texts("[data-chart='landmark_budget-Budget'] .now") == ["0.5", "1.5", "10.5"]


def test_a_cell_is_chosen_in_the_list_or_on_the_map(page):
    def shown() -> list[str]:
        return page.texts("[data-chart='counts'] .now")

    page.run("const s = document.querySelector('input[type=range]'); s.value = 0; s.dispatchEvent(new Event('input'))")
    select = page.one("select")
    for option in select.find_elements("css selector", "option"):
        if option.text == "All cells together":
            option.click()
    assert shown() == ["10", "14"]
    cell = page.find("[data-map='True'] .cell")[0]
    page.run("arguments[0].scrollIntoView({block: 'center'})", cell)  # not below the bar of the time
    cell.click()
    assert shown() == ["1", "2"]
    assert select.get_attribute("value") == "0"
    assert len(page.find(".cell.chosen")) == 3
    # The noise of one cell is known, so there is a band; that of a sum is not shown.
    assert len(page.find("[data-chart='counts'] path.band")) == 1


def test_all_charts_zoom_together(page):
    def drawn() -> list[int]:
        return [page.windows_drawn(chart) for chart in ("counts", "error", "landmark_budget-Budget")]

    page.one("button[aria-label='Zoom in']").click()
    assert max(drawn()) <= 14
    assert len(set(drawn())) == 1
    page.one("button[aria-label='Show all']").click()
    assert drawn() == [24] * 3
    actions = __import__("selenium.webdriver", fromlist=["ActionChains"]).ActionChains(page.driver)
    chart = page.one("[data-chart='error'] svg.chart")
    page.run("arguments[0].scrollIntoView({block: 'center'})", chart)
    actions.move_to_element(chart).click_and_hold().move_by_offset(200, 0).release().perform()
    assert 3 <= max(drawn()) <= 8
    assert len(set(drawn())) == 1


def test_everything_is_reached_with_the_keyboard(page):
    body = page.one("body")
    seen = []
    for _ in range(60):
        body = page.driver.switch_to.active_element
        body.send_keys("\ue004")  # Tab
        focused = page.run(
            "const n = document.activeElement, s = getComputedStyle(n);"
            "const name = n.getAttribute('aria-label') || n.labels?.[0]?.textContent || n.textContent;"
            "return [n.tagName, name, s.outlineStyle]"
        )
        if focused[0] == "BODY":
            break
        seen.append(focused)
    assert all(name.strip() for _, name, _ in seen)
    # Where the keyboard is can be seen, on every control.
    assert {outline for _, _, outline in seen} <= {"solid", "auto"}
    names = [name for _, name, _ in seen]
    assert names[1] == "Skip to the report"
    for expected in ("Window", "Cell", "Zoom in", "Download the data of Error as CSV", "Mean over the stretch shown"):
        assert expected in names
    page.one("button[aria-label='Zoom in']").send_keys("\ue007")  # Enter
    assert page.windows_drawn("counts") <= 14


def test_nothing_moves_for_who_asks_for_less_motion(page):
    def seconds(preference: str) -> str:
        features = [{"name": "prefers-reduced-motion", "value": preference}]
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "screen", "features": features})
        return page.run("return getComputedStyle(document.querySelector('.cell')).transitionDuration")

    assert seconds("no-preference") != "0s"
    assert seconds("reduce") == "0s"


def test_a_line_is_switched_off_and_on(page):
    key = page.find("[data-chart='counts'] .legend button")[0]
    key.click()
    assert key.get_attribute("aria-pressed") == "false"
    assert len(page.find("[data-chart='counts'] svg.chart path.line")) == 1
    key.click()
    assert len(page.find("[data-chart='counts'] svg.chart path.line")) == 2


def test_tables_sort_by_number_and_by_text(page):
    details = next(d for d in page.find("details") if "All windows" in d.text)
    details.find_element("css selector", "summary").click()
    page.until(lambda: details.find_elements("css selector", "td"))

    def column(i: int) -> list[str]:
        return page.run(
            f"return [...arguments[0].querySelectorAll('td:nth-child({i})')].map(n => n.textContent)", details
        )

    assert column(1) == [str(w) for w in range(1, 25)]
    head = details.find_elements("css selector", "th")[0]
    button = head.find_element("css selector", "button")
    button.click()
    assert head.get_attribute("aria-sort") == "ascending"
    button.click()
    assert head.get_attribute("aria-sort") == "descending"
    assert column(1) == [str(w) for w in range(24, 0, -1)]
    details.find_elements("css selector", "th button")[3].click()
    assert head.get_attribute("aria-sort") is None
    assert column(4)[-1] == "refused"


def test_the_data_of_a_chart_is_downloaded_as_csv(page, tmp_path):
    behaviour = {"behavior": "allow", "downloadPath": str(tmp_path)}
    page.driver.execute_cdp_cmd("Browser.setDownloadBehavior", behaviour)
    page.one("[data-chart='landmark_budget-Budget'] .download").click()
    page.until(lambda: list(tmp_path.glob("*.csv")))
    with next(tmp_path.glob("*.csv")).open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert len(rows) == 24
    assert rows[2]["window_start"] == "2024-01-01T02:00:00.000Z"
    assert [rows[2][name] for name in ("window", "ε of the window", "spent", "left")] == ["3", "0.5", "1.5", "10.5"]


def test_text_that_a_spreadsheet_would_run_is_defused(page):
    assert page.run("return csvText(['=1+1', 'a,\"b'], [['@x', -1.5]])") == '\'=1+1,"a,""b"\r\n\'@x,-1.5\r\n'


def test_the_theme_follows_the_reader_and_the_button(driver, report):
    def background(page: Page) -> int:
        colour = page.run("return getComputedStyle(document.body).backgroundColor")
        return sum(int(part) for part in colour[4:-1].split(",")[:3])

    dark = Page(driver, report.as_uri(), theme="dark")
    assert background(dark) < 150
    dark.one("button.theme").click()
    assert background(dark) > 600
    assert background(Page(driver, report.as_uri())) > 600


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE])
def test_axe_finds_no_serious_fault(driver, report, size, theme):
    page = Page(driver, report.as_uri(), size, theme)
    page.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    page.until(lambda: len(page.find("details td")) > 24)
    assert faults(page) == []


def test_a_phone_never_scrolls_sideways(driver, report):
    page = Page(driver, report.as_uri(), PHONE)
    assert page.run("return document.documentElement.scrollWidth") <= PHONE[0]


def test_long_names_keep_the_maps_apart(driver, tmp_path):
    folder = run_folder(tmp_path, cells=tuple(f"8828308217fffff of the {i}th district" for i in range(9)))
    page = Page(driver, write_report(folder)[0].as_uri())
    sides = page.run(
        "const right = n => n.getBoundingClientRect().right;"
        "return [...document.querySelectorAll('[data-map]')].map(n => [n.getBoundingClientRect().top,"
        " n.getBoundingClientRect().left, Math.max(right(n), ...[...n.querySelectorAll('*')].map(right))])"
    )
    beside = [(one, other) for one, other in itertools.pairwise(sides) if one[0] == other[0]]
    assert beside
    assert all(right <= left for (_, _, right), (_, left, _) in beside)


def test_prints_without_controls_and_in_light(driver, report):
    page = Page(driver, report.as_uri(), theme="dark")
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert not any(button.is_displayed() for button in page.find(".toolbar button, .theme, .download, select"))
    assert page.run("return getComputedStyle(document.body).backgroundColor") == "rgb(253, 252, 250)"


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE])
def test_the_statement_for_the_data_protection_officer(driver, tmp_path, size, theme):
    """Without a script to be ready: read, without a serious fault, and printed on white A4 pages."""
    page = Page(driver, write_statement(run_folder(tmp_path, accounts=BUDGET)).as_uri(), size, theme, has_script=False)
    assert faults(page) == []
    assert page.run("return document.documentElement.scrollWidth") <= size[0]
    assert [entry for entry in driver.get_log("browser") if "favicon" not in entry["message"]] == []
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert page.run("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    printed = base64.b64decode(driver.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})["data"])
    (box,) = {tuple(map(float, sides)) for sides in re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", printed)}
    assert box == pytest.approx((595, 842), abs=1)


def test_no_text_of_a_run_is_ever_executed(driver, tmp_path):
    evil = "<img src=x onerror=document.title='run'>"
    rows = tuple(account(evil, evil, w, 1.0, subject=evil, unit=evil) for w in range(1, 25))
    folder = run_folder(tmp_path, cells=(evil, "b"), accounts=rows, public={"name": evil})
    page = Page(driver, write_report(folder)[0].as_uri())
    assert page.driver.title == f"{evil} · penstock"
    assert page.one("h1").text == evil
    assert evil in page.texts("select option")
    assert page.find("img") == []
    assert page.driver.get_log("browser") == []


def test_a_live_page_grows_and_keeps_the_readers_place(driver, tmp_path):
    folder = run_folder(tmp_path / "run", n_windows=5)
    manifest = folder / "operator" / "manifest.json"
    finished = manifest.read_bytes()
    manifest.unlink()
    with watch(folder) as address:
        page = Page(driver, address)
        assert page.windows_drawn("counts") == 5
        page.find("[data-map='True'] .cell")[1].click()
        page.find("[data-map='True'] .ground")[0].send_keys("+")
        run_folder(tmp_path / "longer", n_windows=8)
        for name in ("public/releases.parquet", "operator/truth.parquet"):
            shutil.copy(tmp_path / "longer" / name, folder / name)
        page.run("document.querySelector('#maps').scrollIntoView()")
        before = page.run("return scrollY")
        page.until(lambda: page.windows_drawn("counts") == 8)
        assert before > 500
        assert page.run("return scrollY") == before
        assert page.run("return document.querySelector('select').value") == "1"
        assert page.run("return document.activeElement.closest('figure').dataset.map") == "True"
        assert page.run("return [...document.querySelectorAll('.ground')].every((one) => one.matches('.near'))")
        assert "the run goes on" in page.texts(".warnings")[0]
        manifest.write_bytes(finished)
        page.until(lambda: "the run goes on" not in page.texts(".warnings")[0])


def test_the_page_of_an_experiment(driver, tmp_path):
    page = Page(driver, write_report(experiment_folder(tmp_path))[0].as_uri())
    assert page.driver.get_log("browser") == []
    assert page.run("return document.images[0].complete")
    heads = page.find("#results th button")
    heads[1].click()
    heads[1].click()
    assert page.texts("#results td:nth-child(2)") == ["2", "1"]
    assert faults(page) == []


@pytest.mark.parametrize("size", [DESKTOP, PHONE])
def test_axe_finds_no_serious_fault_in_the_dark_page_of_an_experiment(driver, tmp_path, size):
    page = Page(driver, write_report(experiment_folder(tmp_path))[0].as_uri(), size, "dark")
    page.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert faults(page) == []
    assert page.run("return document.documentElement.scrollWidth") <= size[0]


def test_the_frontier_of_an_experiment(driver, tmp_path):
    page = Page(driver, write_report(experiment_folder(tmp_path))[0].as_uri())
    # The other setting's loss is infinite and has no place; each measure has its limit.
    assert len(page.find(".frontier .point")) == 1
    assert len(page.find(".frontier .point.kept")) == len(page.find(".frontier .ring")) == 1
    assert len(page.find(".frontier .limit")) == 2
    assert page.one("#frontier [role=status]").text.startswith("uniform, epsilon 1: best of those")
    page.one("select[aria-label=Setting]").send_keys("sample")
    assert page.one("#frontier [role=status]").text.startswith("sample, epsilon 2: breaks a limit. ")
    assert page.one("#frontier [role=status]").text.endswith("Mean absolute error ∞")
    across = page.one("select[aria-label='Horizontal axis']")
    across.send_keys("hotspots")
    assert len(page.find(".frontier .point")) == 2
    assert len(page.find(".frontier .point.kept")) == 1


def test_settings_of_a_single_limit_are_ranked_by_name(driver, tmp_path):
    choice = {"settings": 2, "allowed": 1, "at_least": {"hotspot_f1": 0.85}, "at_most": {}, "prefer": "hotspot_f1"}
    best = {"values": {"variant": "uniform", "epsilon": 1.0}, "means": {"hotspot_f1": 0.8}}
    page = Page(driver, write_report(experiment_folder(tmp_path, choice=choice | {"best": best}))[0].as_uri())
    assert page.texts(".frontier .name")[:3:2] == ["uniform, epsilon 1", "sample, epsilon 2"]
    assert {"80 %", "90 %"} <= set(page.texts(".frontier text"))
    assert len(page.find(".frontier .point.kept")) == len(page.find(".frontier .ring")) == 1
    assert len(page.find(".frontier .limit")) == 1
    assert faults(page) == []


def test_the_data_of_a_figure_of_an_experiment_is_downloaded(driver, tmp_path):
    page = Page(driver, write_report(experiment_folder(tmp_path))[0].as_uri())
    behaviour = {"behavior": "allow", "downloadPath": str(tmp_path / "got")}
    page.driver.execute_cdp_cmd("Browser.setDownloadBehavior", behaviour)
    page.one(".picture .download").click()
    page.until(lambda: list((tmp_path / "got").glob("*.csv")))
    text = next((tmp_path / "got").glob("*.csv")).read_text(encoding="utf-8")
    assert text.split() == ["variant,mean", "hotspot_f1", "'=uniform,0.8", "sample,"]


def test_the_page_of_traces(driver, tmp_path):
    page = Page(driver, write_report(trace_folder(tmp_path))[0].as_uri())
    assert page.driver.get_log("browser") == []
    assert [p.get_attribute("d").count("L") for p in page.find(".way path")] == [2, 2]
    assert len(page.find(".way circle")) == 2
    before = page.one(".way").get_attribute("aria-label")
    page.find("select option")[1].click()
    assert page.one(".way").get_attribute("aria-label") == before.replace("Way of a", "Way of b")
    assert faults(page) == []


def test_noise_above_every_count_neither_fills_a_map_nor_hides_its_sign(driver, tmp_path):
    folder = run_folder(tmp_path, cells=CELLS, space=GRID)
    path = folder / "public" / "releases.parquet"
    signs = {"r00c00": 1.0, "r00c01": 0.3, "r01c00": 0.01, "r01c01": -1.0}
    rows = pl.read_parquet(path).with_columns(pl.col(pl.Categorical).cast(pl.String))
    value = 1000 * pl.col("cell").replace_strict(signs)
    pq.write_table(rows.with_columns(value=value).to_arrow().cast(RELEASES), path)
    page = Page(driver, write_report(folder)[0].as_uri())
    drawn = page.run("return [...document.querySelectorAll('[data-map=Released] .cell')].map(n => n.classList[1])")
    assert drawn.count("below") == 1
    assert len(set(drawn)) == 4
    true = page.run("return [...document.querySelectorAll('[data-map=True] .cell')].map(n => n.classList[1])")
    assert set(true) == {"s0"}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE])
def test_outlines_lie_on_the_maps_and_let_clicks_through(driver, tmp_path, size, theme):
    folder = run_folder(tmp_path, cells=CELLS, space=GRID)
    write_cells(folder, build_plugin(Space, GRID, "space", ()))
    south, west, north, east = (GRID[side] for side in ("south", "west", "north", "east"))
    line = {"type": "LineString", "coordinates": [[west, south], [east, north]]}
    file = tmp_path / "lines.geojson"
    features = [{"type": "Feature", "properties": {}, "geometry": line}]
    file.write_text(json.dumps({"type": "FeatureCollection", "features": features}))
    write_outlines(folder, str(file))
    page = Page(driver, write_report(folder)[0].as_uri(), size=size, theme=theme)
    paths = [node.get_attribute("d") for node in page.find("#maps .outlines")]
    assert len(paths) == 3
    assert len(set(paths)) == 1
    # From corner to corner of the cells.
    (x, y), (right, top) = (map(float, end.split()) for end in paths[0].removeprefix("M").split("L"))
    box = page.run("return (b => [b.x, b.y, b.width, b.height])(document.querySelector('.map').viewBox.baseVal)")
    assert (x, top) == pytest.approx((0, 0), abs=0.2)
    assert (right, y) == pytest.approx((box[2] + 2 * box[0], box[3] + 2 * box[1]), abs=0.2)
    assert page.run("return getComputedStyle(document.querySelector('.outlines')).pointerEvents") == "none"
    page.find("[data-map=True] .cell")[0].click()
    drawn = page.run("return [...document.querySelector('[data-map=True] .map').children].map(n => n.classList[0])")
    assert drawn[-1] == "outlines"
    assert [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"] == []
    assert page.run("return document.documentElement.scrollWidth") <= size[0]


VIEW = "return (b => [b.x, b.y, b.width, b.height])(document.querySelectorAll('.map')[arguments[0]].viewBox.baseVal)"


def view(page: Page, number: int = 0) -> list[float]:
    """West, north, width and height of what a map shows, in units of the drawing."""
    return page.run(VIEW, number)


def pointer(page: Page, kind: str, x: float, y: float, **others: Any) -> None:
    """A wheel turned, or a finger put down or moved, at a place on the first map's drawing."""
    script = (
        "const [kind, x, y, others] = arguments;"
        "const map = document.querySelector('.map'), box = map.getBoundingClientRect();"
        "const about = {clientX: box.x + x, clientY: box.y + y, bubbles: true, cancelable: true, ...others};"
        "return !map.dispatchEvent(kind === 'wheel' ? new WheelEvent(kind, about) : new PointerEvent(kind, about))"
    )
    return page.run(script, kind, x, y, others)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE])
def test_all_maps_zoom_together_by_buttons_and_keys(driver, report, size, theme):
    page = Page(driver, report.as_uri(), size, theme)
    x, y, width, height = whole = view(page)
    page.find("button[aria-label='Zoom maps in']")[1].click()
    half = pytest.approx([x + width / 4, y + height / 4, width / 2, height / 2])
    assert [view(page, i) for i in range(3)] == [half] * 3
    ground = page.find(".ground")[2]
    ground.send_keys("+")
    assert view(page)[2] == pytest.approx(width / 4)
    ground.send_keys("\ue012")  # the left arrow: a fifth of what is shown
    assert view(page)[0] == pytest.approx(x + 3 * width / 8 - width / 20)
    ground.send_keys("\ue012" * 20)
    assert view(page)[0] == pytest.approx(x)  # no further than the edge
    ground.send_keys("--")
    assert view(page) == whole
    ground.send_keys("+" * 20)
    assert view(page)[2] == pytest.approx(width / 64)
    ground.send_keys("0")
    assert view(page) == whole
    # A line is as thin as before.
    assert page.run("return getComputedStyle(document.querySelector('.cell')).vectorEffect") == "non-scaling-stroke"
    assert page.run("return document.documentElement.scrollWidth") <= size[0]
    assert driver.get_log("browser") == []


def test_a_map_leaves_the_wheel_and_the_arrows_to_the_page(page):
    whole = view(page)
    assert not pointer(page, "wheel", 50, 50, deltaY=-100)
    assert view(page) == whole
    assert pointer(page, "wheel", 50, 50, deltaY=-100, ctrlKey=True)
    assert view(page)[2] == pytest.approx(whole[2] / 2**0.5)
    page.one(".ground").send_keys("0")  # which has the focus now
    assert pointer(page, "wheel", 50, 50, deltaY=-100)
    assert pointer(page, "wheel", 50, 50, deltaY=100)
    # Of the whole area nothing is further out.
    assert view(page) == pytest.approx(whole)
    assert not pointer(page, "wheel", 50, 50, deltaY=100)
    for key, changes in (("ArrowUp", False), ("+", True), ("ArrowUp", True), ("Tab", False)):
        prevented = page.run(
            "return !document.activeElement.dispatchEvent("
            "new KeyboardEvent('keydown', {key: arguments[0], bubbles: true, cancelable: true}))",
            key,
        )
        assert prevented == changes, key


def test_a_map_is_moved_by_drag_and_zoomed_by_double_click_and_by_pinch(page):
    actions = __import__("selenium.webdriver", fromlist=["ActionChains"]).ActionChains(page.driver)
    map_ = page.one(".map")
    page.run("arguments[0].scrollIntoView({block: 'center'})", map_)
    x, y, width, height = whole = view(page)
    actions.move_to_element(map_).double_click().perform()
    assert view(page) == pytest.approx([x + width / 4, y + height / 4, width / 2, height / 2], rel=0.02)
    chosen = page.texts("[data-map=Released] .unit")
    scale = page.run("return arguments[0].getScreenCTM().a", map_)
    before = view(page)
    actions.move_to_element(map_).click_and_hold().move_by_offset(30, 20).release().perform()
    assert view(page)[:2] == pytest.approx([before[0] - 30 / scale, before[1] - 20 / scale], abs=0.5)
    assert page.texts("[data-map=Released] .unit") == chosen  # a drag is no click
    page.one(".ground").send_keys("0")
    for finger, at in ((7, 150), (8, 200)):
        pointer(page, "pointerdown", at, 100, pointerId=finger, buttons=1, pointerType="touch")
    page.run("SVGElement.prototype.setPointerCapture = () => {}")  # made-up fingers cannot be captured
    pointer(page, "pointermove", 250, 100, pointerId=8, buttons=1, pointerType="touch")
    assert view(page)[2] == pytest.approx(width / 2)
    pointer(page, "pointermove", 175, 100, pointerId=8, buttons=1, pointerType="touch")
    assert view(page) == whole
    for finger in (7, 8):
        pointer(page, "pointerup", 150, 100, pointerId=finger, pointerType="touch")
    assert page.driver.get_log("browser") == []


def test_points_come_apart_when_a_map_is_zoomed(driver, tmp_path):
    stations = tmp_path / "stations.csv"
    stations.write_text(
        "station,latitude,longitude\n" + "".join(f"{c},{40 + i / 10},{-74 + i / 10}\n" for i, c in enumerate("abcd"))
    )
    space = {"type": "stations", "file": str(stations), "radius": 500}
    page = Page(driver, write_report(run_folder(tmp_path, space=space))[0].as_uri())
    radius = float(page.one("circle.cell").get_attribute("r"))
    for _ in range(2):
        page.one("button[aria-label='Zoom maps in']").click()
    assert float(page.one("circle.cell").get_attribute("r")) == pytest.approx(radius / 2)


def test_a_map_says_what_it_does_not_show(driver, tmp_path):
    """A cell without a place, and a quantity that is the same everywhere."""
    folder = run_folder(tmp_path, cells=(*CELLS, "elsewhere"), space=GRID)
    page = Page(driver, write_report(folder)[0].as_uri())
    assert page.texts("#maps > p")[0].startswith("1 cell has no place on the map (elsewhere). ")
    assert page.texts("[data-map=Error] .unit") == ["1 in every cell"]
    assert page.texts("[data-map=True] .unit") == ["28 in elsewhere"]


def test_what_is_not_there_has_no_edge_on_a_stack(driver, tmp_path):
    rows = tuple(
        account("landmark_budget", name, w, v)
        for w in range(1, 25)
        for name, v in (("budget_spent", 2.0), ("budget_left", 0.0))
    )
    page = Page(driver, write_report(run_folder(tmp_path, accounts=rows))[0].as_uri())
    assert page.texts("[data-chart='landmark_budget-Budget'] .now") == ["2", "0"]
    lines = page.find("[data-chart='landmark_budget-Budget'] svg.chart path.line")
    assert [bool(line.get_attribute("d")) for line in lines] == [True, False]
    assert len(page.find("[data-chart='landmark_budget-Budget'] .dot")) == 1
