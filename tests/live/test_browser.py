"""The report and the live view in a real browser."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from offbeat import Experiment, run
from offbeat.comparison.gathered import comparison_of, gather
from offbeat.live.server import listen, make_server
from offbeat.results.report import report_html

EVIL = "<script>document.title='owned'</script>"
READY = "html[data-ready=yes]"


@pytest.fixture(scope="module")
def page(browser: Any, results: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The report of the comparison, open; its console errors fail the test that caused them."""
    runs = gather([results / "both"])
    file = tmp_path_factory.mktemp("page") / "report.html"
    file.write_text(report_html(comparison_of(runs, None), [each.config for each in runs], EVIL))
    opened = browser.new_page(viewport={"width": 1200, "height": 900}, color_scheme="light")
    opened.errors = watch_errors(opened)
    opened.goto(file.as_uri())
    opened.wait_for_selector(READY)
    opened.wait_for_function("document.querySelector('#strip-canvas').dataset.drawn === 'parts'")
    yield opened
    opened.close()


@pytest.fixture(autouse=True)
def _no_errors(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "page" in request.fixturenames:
        assert request.getfixturevalue("page").errors == []


def watch_errors(page: Any) -> list[str]:
    errors: list[str] = []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    return errors


def inked(page: Any, selector: str) -> int:
    """The number of colours on a canvas: one or none means that nothing was drawn."""
    count: int = page.evaluate(
        """(selector) => { const c = document.querySelector(selector);
        const p = new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer);
        return new Set(p).size; }""",
        selector,
    )
    return count


def scale(page: Any) -> str:
    """The labels of the chart's axes, as text that changes when the chart does."""
    text: str = page.evaluate("document.querySelector('#curves-chart canvas').toDataURL()")
    return text


def test_charts_are_drawn_and_a_script_in_a_name_stays_text(page: Any) -> None:
    for selector in ("#curves-chart canvas", "#strip-canvas", "#staleness-chart canvas", "#buffer-chart canvas",
                     "#fleet-chart canvas", "#labels-canvas"):  # fmt: skip
        assert inked(page, selector) > 3, selector
    assert page.title() == EVIL == page.inner_text("h1")
    assert EVIL in page.inner_text("#methods")
    assert page.locator("#curves-chart").get_attribute("data-lines") == "2"
    assert "reached" in page.inner_text("#headline")
    assert page.locator("#faults-table td").count() >= 2


def test_the_axis_the_metric_and_the_scale_can_be_switched(page: Any) -> None:
    pictures = [scale(page)]
    for chosen, value in (("#axis", "megabytes"), ("#metric", "loss"), ("#log-y", ""), ("#axis", "wall")):
        page.select_option(chosen, value) if value else page.click(chosen)
        pictures.append(scale(page))
    assert len(set(pictures)) == len(pictures)
    page.click("#log-y")
    page.select_option("#metric", "accuracy")
    page.select_option("#axis", "time")
    assert scale(page) == pictures[0]


def test_a_method_can_be_hidden(page: Any) -> None:
    before, first = scale(page), page.locator("#methods button").first
    first.click()
    assert first.get_attribute("aria-pressed") == "false"
    assert page.locator("#curves-chart").get_attribute("data-lines") == "1"
    first.click()
    assert scale(page) == before


def test_charts_zoom_by_mouse_and_keyboard(page: Any) -> None:
    before = scale(page)
    box = page.locator("#curves-chart .u-over").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 60, steps=4)
    page.mouse.up()
    assert scale(page) != before
    page.click("#reset")
    page.mouse.move(0, 0)
    assert scale(page) == before
    page.focus("#curves-chart")
    page.keyboard.press("ArrowRight")
    assert "fedavg" in page.inner_text("#spoken")
    page.focus("#strip-canvas")
    whole = page.evaluate("document.querySelector('#strip-canvas').toDataURL()")
    page.keyboard.press("+")
    assert page.evaluate("document.querySelector('#strip-canvas').toDataURL()") != whole
    page.keyboard.press("0")
    assert page.evaluate("document.querySelector('#strip-canvas').toDataURL()") == whole


def test_tables_are_sorted_by_their_headings(page: Any) -> None:
    heading = page.locator("#runs-table th button").nth(1)

    def seeds() -> list[str]:
        return [cell.inner_text() for cell in page.locator("#runs-table tbody td:nth-child(2)").all()]

    heading.click()
    assert seeds() == ["0", "0", "1", "1"]
    heading.click()
    assert seeds() == ["1", "1", "0", "0"]
    assert page.locator("#runs-table th").nth(1).get_attribute("aria-sort") == "descending"


def test_hovering_tells_what_a_device_did_and_what_a_method_reached(page: Any) -> None:
    canvas = page.locator("#strip-canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + 200, box["y"] + 60)
    assert "device" in page.inner_text("#strip-readout")
    page.locator("#curves-chart").scroll_into_view_if_needed()
    box = page.locator("#curves-chart .u-over").bounding_box()
    page.mouse.move(box["x"] + 300, box["y"] + 100)
    assert "%" in page.inner_text("#curves-chart .tip")


def test_dark_and_light_by_preference_and_by_button(page: Any) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.click("#theme")
    assert page.evaluate(ground) != light
    page.click("#theme")
    assert page.evaluate(ground) == light
    page.evaluate("localStorage.removeItem('offbeat-theme')")
    page.emulate_media(color_scheme="dark")
    page.reload()
    page.wait_for_selector(READY)
    assert page.evaluate(ground) != light
    page.emulate_media(color_scheme="light")


def test_all_can_be_read_and_reached_without_seeing_the_page(page: Any) -> None:
    assert page.evaluate((Path(__file__).parent / "unreadable.js").read_text()) == []
    page.keyboard.press("Escape")
    page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
    page.focus(".skip")
    for name in ("theme", "print"):
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.id") == name
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_on_paper_nothing_is_cut_and_the_notes_are_there(page: Any) -> None:
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 700, "height": 900})
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    wide = """() => [...document.querySelectorAll(".card *")].filter((e) => e.offsetParent
        && !e.closest("details:not([open])") && e.getBoundingClientRect().right > innerWidth + 1)
        .map((e) => e.outerHTML.slice(0, 80))"""
    cut = page.evaluate(wide)
    assert not cut, cut
    assert page.locator("#caption li").first.is_visible() and not page.locator("nav.sections").is_visible()
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.emulate_media(media="screen")
    page.set_viewport_size({"width": 1200, "height": 900})
    assert page.pdf(format="A4").startswith(b"%PDF")


# Live ----------------------------------------------------------------------------------------------------------------


class Server:
    """The live view on a free port, in a thread."""

    def __init__(self, root: Path, where: socket.socket) -> None:
        self.server = make_server(root)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [where]}, daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(10.0)


def test_a_live_page_follows_a_run_through_interruption_resume_and_a_restart_of_the_server(
    browser: Any, tmp_path: Path
) -> None:
    experiment = Experiment.parse(
        {
            "stop": {"time": 60.0},
            "data": {"name": "digits", "devices": 8},
            "model": {"name": "logistic"},
            "evaluation": {"every_seconds": 5.0},
            "algorithm": {"name": "fedbuff", "buffer": 2, "concurrency": 4},
            "execution": {"executor": "sequential"},
        }
    )
    step, stop = threading.Event(), threading.Event()

    def slowly(progress: float, row: object) -> None:
        if row is not None and progress > 0.3 and not stop.is_set():
            step.wait(20.0)

    def in_background() -> threading.Thread:
        from contextlib import suppress

        from offbeat.core.errors import Interrupted

        def work() -> None:
            with suppress(Interrupted):
                run(experiment, tmp_path / "run", resume=True, watch=slowly, interrupted=stop)

        thread = threading.Thread(target=work)
        thread.start()
        return thread

    where = listen("127.0.0.1", 0)
    port = where.getsockname()[1]
    server = Server(tmp_path, where)
    page = browser.new_page()
    errors = watch_errors(page)
    page.goto(f"http://127.0.0.1:{port}/")
    page.wait_for_selector("text=There are no runs")
    background = in_background()
    page.wait_for_selector(".state.running")
    page.click("#index a")
    page.wait_for_selector("#facts .state.running")
    page.wait_for_function("document.querySelector('#strip-canvas').dataset.drawn === 'parts'")
    assert "orders in flight" in page.inner_text("#facts")
    stop.set()
    step.set()
    background.join()
    page.wait_for_selector("#facts .state.interrupted")
    assert "offbeat run" in page.inner_text("#facts code") and "--resume" in page.inner_text("#facts code")
    server.stop()
    page.wait_for_selector("text=does not respond")
    stop.clear()
    server = Server(tmp_path, listen("127.0.0.1", port))
    background = in_background()
    background.join()
    page.wait_for_selector("#facts .state.finished", timeout=20_000)
    assert page.evaluate("document.querySelector('#curves-table').textContent").count("%") > 5
    assert not [error for error in errors if "ERR_CONNECTION" not in error and "ERR_INCOMPLETE" not in error], errors
    page.close()
    server.stop()
    assert not list(tmp_path.glob("run/*.draft"))


def test_a_live_page_follows_a_tuning_and_a_sweep(browser: Any, tmp_path: Path) -> None:
    from offbeat.algorithms import FedBuff
    from offbeat.comparison.compare import sweep
    from offbeat.comparison.tuning_table import tune_all

    class Mine(FedBuff):
        """A rule that only this process has, so that the runs stay in it."""

    base = Experiment(
        stop={"time": 20.0},
        data={"name": "digits", "devices": 6},
        model="logistic",
        evaluation={"every_seconds": 4.0},
        algorithm=Mine(buffer=2, concurrency=3),
        execution={"executor": "sequential", "save_model": False},
    )
    go, seen = threading.Event(), threading.Event()

    def slowly(_: object, fraction: float, row: object) -> None:
        if row is not None and fraction > 0.4:
            seen.set()
            go.wait(100.0)

    def work() -> None:
        tune_all(base, ["fedbuff"], 2, out=tmp_path / "tuned", seeds=1, tuning_seeds=[7], watch=slowly)
        sweep(base, {"fleet.ratio": [2.0, 3.0]}, [0], tmp_path / "swept", watch=slowly)

    background = threading.Thread(target=work)
    background.start()
    where = listen("127.0.0.1", 0)
    port = where.getsockname()[1]
    server = Server(tmp_path, where)
    page = browser.new_page()
    errors = watch_errors(page)
    assert seen.wait(30.0)
    page.goto(f"http://127.0.0.1:{port}/")
    page.wait_for_selector("#index .state.running")
    assert "tuning of fedbuff" in page.inner_text("#index")
    page.click("#index a")
    page.wait_for_selector("#facts .state.running")
    page.wait_for_selector("#curves-chart canvas")
    assert int(page.locator("#curves-chart").get_attribute("data-lines")) >= 1
    go.set()
    page.wait_for_selector("#facts .state.finished", timeout=30_000)
    assert "3 of 3 finished" in page.inner_text("#facts")  # two trials on one seed, and the winner on another
    background.join()
    page.goto(f"http://127.0.0.1:{port}/view/swept")
    page.wait_for_selector("#facts .state.finished")
    assert page.locator("#methods button").count() == 2
    assert errors == []
    page.close()
    server.stop()
