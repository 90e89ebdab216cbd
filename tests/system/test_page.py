"""The page at / in Chromium: what a person does and sees there.

Each test has a service, a database and a browser context of its own.
"""

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, Literal
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.helpers import KEY, NEW_PET, other_program
from tests.service import (
    FLASK,
    GUNICORN,
    PROXIED,
    ROOT,
    TIMEOUT,
    Service,
    add_pets,
    run,
    serving,
)

# It checks WCAG: https://github.com/dequelabs/axe-core
AXE = ROOT / ".ci" / "node_modules" / "axe-core" / "axe.min.js"
MAX_INT64 = 2**63 - 1
WARNING = (
    " The pet may be stored. Look for it before you press Add again: "
    "it would be on the last page of these pets."
)
EARLIER = " The table still shows the earlier list."
WRONG_CATEGORY_ID = "Category id: enter a whole number, such as 12."
MARKUP = "<img src=x onerror='document.title = 1'><script>alert(1)</script>"
SHELL_CHARACTERS = """It's "$HOME" `id` \\ !! <API_KEY> é\xa0🐈"""
# In browsers from before 2023 to 2025, the reviver gets no context.
NO_SOURCE_TEXT = """
    const parse = JSON.parse;
    JSON.parse = (text, reviver) =>
        parse(text, reviver && ((name, value) => reviver(name, value)));
"""
# Do what a translator does: replace each text by another one, in an element of its own.
TRANSLATE = """
    () => document.querySelectorAll("body :not(script)").forEach((element) => {
        const isText = element.textContent && !element.children.length;
        if (isText && !element.closest("[translate=no]"))
            element.innerHTML = "<font>verkauft</font>";
    })
"""
# Paint colors over each other, twice, and return the contrast of the results.
CONTRAST = """
    (pair) => {
        const { Color, flattenColors, getContrast } = axe.commons.color;
        const parse = (text) => {
            const color = new Color();
            color.parseString(text);
            return color;
        };
        const paint = (texts) => texts.map(parse).reduce(
            (below, above) => flattenColors(above, below));
        return getContrast(...pair.map(paint));
    }
"""
# Return the right end of each character, in pixels.
RIGHT_ENDS = """
    (element) => [...element.textContent].map((_, index) => {
        const range = document.createRange();
        range.setStart(element.firstChild, index);
        range.setEnd(element.firstChild, index + 1);
        return range.getBoundingClientRect().right;
    })
"""
# Return whether nothing covers the center of an element.
IS_ON_TOP = """
    (element) => {
        const { x, y, width, height } = element.getBoundingClientRect();
        return element.contains(
            document.elementFromPoint(x + width / 2, y + height / 2));
    }
"""
# Return the number of lines in each element.
LINES = """
    (elements) => elements.map((element) => {
        const range = document.createRange();
        range.selectNodeContents(element);
        return range.getClientRects().length;
    })
"""
# Return the elements that scroll sideways, or are wider than the screen.
TOO_WIDE = """
    (elements, width) => elements
        .filter((element) => element.scrollWidth > Math.min(element.clientWidth, width))
        .map((element) => element.outerHTML)
"""

# Debian's Chromium. It finds no host but this one: otherwise, it asks hosts of its
# maker on its own, even with Playwright's switches.
CHROMIUM: dict[str, Any] = {
    "executable_path": "/usr/bin/chromium",
    "args": ["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"],
}

# In milliseconds.
expect.set_options(timeout=1000 * TIMEOUT)

# pytest 9.2 warns of the fixture base_url of pytest-playwright 0.10.0.
pytestmark = pytest.mark.filterwarnings("ignore:Session-scoped fixtures")
on_a_phone = pytest.mark.browser_context_args(
    viewport={"width": 380, "height": 800}, is_mobile=True
)


@pytest.fixture(scope="session")
def browser_type_launch_args(
    browser_type_launch_args: dict[str, Any],
) -> dict[str, Any]:
    return {**browser_type_launch_args, **CHROMIUM}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """Run the service under gunicorn. It has no pets yet."""
    with serving(tmp_path / "pets.db") as service:
        yield service


@pytest.fixture
def page(page: Page, service: Service) -> Iterator[Page]:
    """Open the page, and enter the key. Check at the end what holds in every test."""
    page.goto(f"http://{service.address()}/")
    page.get_by_label("API key").fill(KEY)
    yield page
    assert page.page_errors(filter="all") == []
    for message in page.console_messages(filter="all"):
        # Chromium reports each request that is refused or not answered.
        assert message.text.startswith("Failed to load resource: "), message.text
    for request in page.requests():
        assert urlsplit(request.url).hostname == "127.0.0.1"
        assert KEY not in request.url
    assert KEY not in page.content()
    assert page.context.storage_state(indexed_db=True) == {"cookies": [], "origins": []}
    assert page.evaluate("sessionStorage.length") == 0


def button(page: Page, name: str) -> Locator:
    return page.get_by_role("button", name=name)


def region(page: Page, name: str) -> Locator:
    return page.get_by_role("region", name=name)


def press_list(page: Page, limit: str = "20") -> None:
    """Fill in the limit, and press List."""
    page.get_by_label("Limit").fill(limit)
    button(page, "List").click()


def added(name: str, pet_id: int) -> str:
    """Return the outcome of Add."""
    return f"Added {name} with id {pet_id}."


def press_add(page: Page, name: str, category_id: str = "1") -> None:
    """Fill in the new pet, and press Add."""
    page.get_by_label("Name").fill(name)
    page.get_by_label("Category id").fill(category_id)
    button(page, "Add").click()


def expect_outcome(page: Page, section: str, text: str | re.Pattern[str]) -> None:
    """Wait for the outcome in a section, and expect it to be in sight."""
    outcome = region(page, section).get_by_role("status")
    expect(outcome).to_have_text(text)
    expect(outcome).to_be_in_viewport(ratio=1)


def expect_outcomes(page: Page, text: str | re.Pattern[str], warning: str = "") -> None:
    """Press List and Add, and wait for the outcome of both. Add may have a warning."""
    press_list(page)
    expect_outcome(page, "Pets", text)
    press_add(page, "Rex")
    expect_outcome(page, "Add a pet", f"{text}{warning}" if warning else text)


def expect_ids(page: Page, *ids: int) -> None:
    """Wait until the table has the pets with these ids."""
    expect(page.locator("td:first-child")).to_have_text([f"{pet_id}" for pet_id in ids])


def expect_wrong(field: Locator) -> None:
    """Expect that a field is marked as wrong, and has the focus."""
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(field).to_be_focused()


def sent_methods(page: Page) -> list[str]:
    """Return the methods of the requests that the script has sent."""
    requests = page.requests()
    return [request.method for request in requests if request.resource_type == "fetch"]


def paste(page: Page) -> str:
    """Paste the clipboard into the field Name, and return what is in it."""
    name = page.get_by_label("Name")
    name.clear()
    name.press("Control+V")
    return name.input_value()


def color(page: Page, selector: str, name: str = "backgroundColor") -> str:
    """Return a color of the first element, or of its mark if it has one."""
    pseudo = "::before" if name == "color" else ""
    get = f"(element) => getComputedStyle(element, '{pseudo}').{name}"
    return str(page.locator(selector).first.evaluate(get))


def contrast(page: Page, first: list[str], second: list[str]) -> float:
    """Return the contrast of two colors, each of which is painted in layers."""
    return float(page.evaluate(CONTRAST, [first, second]))


def expect_contrast(page: Page, *marked: str) -> None:
    """Expect that the texts, and the marks of these elements, can be seen."""
    result = page.evaluate("axe.run({ runOnly: ['wcag2a', 'wcag2aa', 'wcag21aa'] })")
    assert result["violations"] == []
    for selector in marked:
        element = f"{selector}:is(p), {selector} .status"
        layers = [color(page, "section"), color(page, element)]
        assert contrast(page, [*layers, color(page, element, "color")], layers) > 3


def run_curl_line(page: Page) -> str:
    """Copy the curl line, run it in a shell with the key, and return the body."""
    button(page, "Copy").click()
    expect(region(page, "Last request")).to_contain_text("Copied.")
    hint = "In a Unix shell, set the key first: API_KEY='…'"
    expect(region(page, "Last request")).to_contain_text(hint)
    line = paste(page)
    assert line == page.get_by_role("group", name="Request").text_content()
    ended = run("bash", "-c", f"API_KEY='{KEY}'\n{line} --silent")
    assert ended.returncode == 0
    return ended.stdout.partition("\n\n")[2]


@pytest.mark.parametrize(
    ("command", "prefix"), [(GUNICORN, ""), (FLASK, ""), (GUNICORN, "/store")]
)
def test_both_servers_and_a_prefix_serve_the_page(
    page: Page, tmp_path: Path, command: list[str], prefix: str
) -> None:
    with serving(tmp_path / "other.db", command, SCRIPT_NAME=prefix) as service:
        page.goto(f"http://{service.address()}{prefix}/")
        page.get_by_label("API key").fill(f" {KEY} ")
        for name, pet_id in ("Rex", 1), ("Tom", 2):
            press_add(page, name)
            expect_outcome(page, "Add a pet", added(name, pet_id))
        location = f"location: {prefix}/v1/pets/2"
        expect(region(page, "Last request")).to_contain_text(location)
        press_list(page, limit="1")
        expect_ids(page, 1)
        button(page, "Next page").click()
        expect_ids(page, 2)
        with page.expect_popup() as popup:
            page.get_by_role("link", name="OpenAPI document").click()
        expect(popup.value).to_have_url(f"{page.url}v1/openapi.json")
        expect(popup.value.locator("body")).to_contain_text('"openapi"')


def test_the_key_is_hidden_and_is_gone_after_a_reload(page: Page) -> None:
    expect(page.get_by_label("API key")).to_have_attribute("type", "password")
    press_list(page)
    expect_outcome(page, "Pets", "No pets of any status.")
    page.reload()
    expect(page.get_by_label("API key")).to_have_value("")


def test_nothing_is_sent_without_a_key_that_a_header_can_carry(page: Page) -> None:
    key = page.get_by_label("API key")
    key.clear()
    missing = "Enter the API key at the top of the page, then press List or Add."
    expect_outcomes(page, missing)
    expect(key).to_be_focused()
    key.fill("demo–key")
    expect_outcomes(page, 'The API key contains "–", which no key has.')
    # An invisible character is named by its number.
    key.fill("demo\u200bkey")
    expect_outcomes(page, "The API key contains U+200B, which no key has.")
    key.fill("demo\xa0key")
    expect_outcomes(page, "The API key contains U+00A0, which no key has.")
    key.fill(f"Bearer {KEY}")
    expect_outcomes(page, 'Leave out "Bearer".')
    assert sent_methods(page) == []
    key.fill(KEY)
    press_list(page)
    expect_outcome(page, "Pets", "No pets of any status.")
    key.fill("demo–key")
    press_list(page)
    expect_outcome(page, "Pets", re.compile("which no key has.$"))
    # The last request stays.
    expect(region(page, "Last request")).to_contain_text("200 OK")


def test_a_wrong_key_is_an_error(page: Page) -> None:
    page.get_by_label("API key").fill("other")
    place = re.escape(" The field is at the top of the page.")
    refused = re.compile(f"^invalid_api_key: The API key is not valid.*{place}$")
    expect_outcomes(page, refused)
    expect(region(page, "Last request")).to_contain_text("401 UNAUTHORIZED")
    expect(page.get_by_label("API key")).to_be_focused()
    # A new request clears the old refusal.
    page.get_by_label("API key").fill(KEY)
    press_list(page)
    expect_outcome(page, "Pets", "No pets of any status.")
    expect(region(page, "Add a pet").get_by_role("status")).to_be_empty()


def test_an_error_is_its_code_and_its_message(page: Page, service: Service) -> None:
    add_pets(service, 1)
    press_list(page)
    expect_ids(page, 1)
    error = service.request("GET", "/v1/pets?limit=0").body
    press_list(page, limit="0")
    expect_outcome(page, "Pets", f"{error['code']}: {error['message']}{EARLIER}")
    expect_ids(page, 1)
    expect_wrong(page.get_by_label("Limit"))
    error = service.request("POST", "/v1/pets", {**NEW_PET, "categoryId": "many"}).body
    press_add(page, "Rex", f"{MAX_INT64 + 1}")
    expect_outcome(page, "Add a pet", f"{error['code']}: {error['message']}")
    expect_wrong(page.get_by_label("Category id"))
    expect(page.get_by_label("Limit")).not_to_have_attribute("aria-invalid", "true")
    # The table is still that of the earlier list.
    expect(region(page, "Pets").get_by_role("status")).to_contain_text(EARLIER)


def test_a_category_id_that_is_no_number_is_not_sent(page: Page) -> None:
    field = page.get_by_label("Category id")
    for category_id in ("many", " ", "1.5", "１２"):
        press_add(page, "Rex", category_id)
        expect_outcome(page, "Add a pet", WRONG_CATEGORY_ID)
        expect_wrong(field)
    assert sent_methods(page) == []
    press_add(page, "Rex", "1")
    expect_outcome(page, "Add a pet", added("Rex", 1))
    expect(field).not_to_have_attribute("aria-invalid", "true")


def test_an_answer_of_a_proxy_is_an_error(page: Page) -> None:
    html = "<h1>Bad Gateway</h1>"
    page.route("**/v1/pets*", lambda route: route.fulfill(status=502, body=html))
    text = "502 Bad Gateway: this is not an answer of the service."
    expect_outcomes(page, text, WARNING)
    expect(page.get_by_role("group", name="Body")).to_have_text(html)


def test_no_answer_is_an_error(page: Page) -> None:
    page.route("**/v1/pets*", lambda route: route.abort())
    text = "No answer (Failed to fetch). Is the service running?"
    expect_outcomes(page, text, WARNING)


def test_a_request_waits_for_30_seconds(page: Page, service: Service) -> None:
    page.clock.install()
    os.killpg(service.process.pid, signal.SIGSTOP)
    press_add(page, "Ghost")
    page.clock.run_for(25_000)
    expect_outcome(page, "Add a pet", "Waiting for the answer …")
    page.clock.run_for(5_000)
    text = "No answer (waited 30 seconds). Is the service running?"
    expect_outcome(page, "Add a pet", f"{text}{WARNING}")
    # The pet is stored later.
    os.killpg(service.process.pid, signal.SIGCONT)
    button(page, "Show the pets after id 0").click()
    expect(page.get_by_role("cell")).to_have_text(["1", "Ghost", "1", "available"])
    # The warning stays while its reader looks for the pet.
    expect_outcome(page, "Add a pet", f"{text}{WARNING}")


def test_an_answer_that_breaks_off_is_an_error(page: Page) -> None:
    def answer_half(route: Route) -> None:
        answer = route.fetch()
        assert answer.status == 201
        route.fulfill(response=answer, body=answer.body()[:20])

    page.route("**/v1/pets", answer_half)
    press_add(page, "Ghost")
    expect_outcome(page, "Add a pet", re.compile(f"{WARNING}$"))


def test_a_503_says_that_the_pet_may_be_stored(page: Page, service: Service) -> None:
    service.database.rename(service.database.with_name("moved.db"))
    error = service.request("GET", "/v1/pets").body
    press_list(page)
    expect_outcome(page, "Pets", f"{error['code']}: {error['message']}")
    press_add(page, "Rex")
    # The warning replaces the advice of the service.
    reason = "storage_unavailable: The store cannot answer at the moment."
    expect_outcome(page, "Add a pet", f"{reason}{WARNING}")


def test_status_and_limit_choose_the_pets(page: Page, service: Service) -> None:
    add_pets(service, 3)
    new_status = region(page, "Add a pet").get_by_label("Status")
    new_status.select_option("sold")
    press_add(page, "Kitty", "2")
    expect_outcome(page, "Add a pet", added("Kitty", 4))
    press_list(page, limit="")
    expect_outcome(page, "Pets", "4 pets of any status, no more follow.")
    press_list(page, limit="3")
    expect_outcome(page, "Pets", "3 pets of any status, more follow.")
    link = 'link: </v1/pets?limit=3&after=3>; rel="next"'
    expect(region(page, "Last request")).to_contain_text(link)
    status = region(page, "Pets").get_by_label("Status")
    statuses = ["available", "pending", "sold"]
    expect(status.locator("option")).to_have_text(["any", *statuses])
    expect(new_status.locator("option")).to_have_text(statuses)
    status.select_option("sold")
    press_list(page)
    expect(page.get_by_role("cell")).to_have_text(["4", "Kitty", "2", "sold"])
    expect_outcome(page, "Pets", "1 sold pet, no more follow.")
    status.select_option("pending")
    press_list(page)
    expect_outcome(page, "Pets", "No pending pets.")


def test_a_new_pet_appears_in_the_list(page: Page) -> None:
    def continue_after_outcome(route: Route) -> None:
        expect_outcome(page, "Add a pet", added("Tom", 2))
        route.continue_()

    expect_outcome(page, "Pets", "Enter the API key and press List.")
    press_add(page, "Rex")
    expect_outcome(page, "Add a pet", added("Rex", 1))
    expect_outcome(page, "Pets", "1 pet of any status, no more follow.")
    expect_ids(page, 1)
    page.route("**/v1/pets?*", continue_after_outcome)
    press_add(page, "Tom")
    expect_outcome(page, "Pets", "2 pets of any status, no more follow.")
    expect_outcome(page, "Add a pet", added("Tom", 2))
    expect_ids(page, 1, 2)
    # The list is fetched again, but the POST stays the last request.
    expect(region(page, "Last request")).to_contain_text("201 CREATED")


@pytest.mark.parametrize("width", [1280, 900, 380])
def test_a_new_pet_in_the_table_comes_into_sight(
    page: Page, service: Service, width: int
) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    add_pets(service, 75)
    press_list(page, limit="40")
    button(page, "Next page").click()
    expect_outcome(page, "Pets", "Page 2: 35 pets of any status, no more follow.")
    # On a phone, the row is above the form, and the bar of the list may cover it.
    region(page, "Add a pet").evaluate("(element) => element.scrollIntoView()")
    press_add(page, "Tom")
    expect(page.get_by_role("cell", name="Tom")).to_be_in_viewport(ratio=1)
    assert page.locator(".new").evaluate(IS_ON_TOP)
    expect_outcome(page, "Add a pet", added("Tom", 76))
    expect(button(page, "Show the new pet")).to_be_hidden()


@on_a_phone
@pytest.mark.parametrize("is_answered", [True, False])
def test_a_new_pet_is_one_press_away(
    page: Page, service: Service, is_answered: bool
) -> None:
    def lose_answer(route: Route) -> None:
        assert route.fetch().status == 201
        route.abort()

    add_pets(service, 5)
    press_list(page, limit="5")
    expect_ids(page, 1, 2, 3, 4, 5)
    press_list(page, limit="2")
    expect_ids(page, 1, 2)
    if not is_answered:
        page.route("**/v1/pets", lose_answer)
    press_add(page, "Tom")
    text = added("Tom", 6) if is_answered else re.compile(f"{WARNING}$")
    expect_outcome(page, "Add a pet", text)
    expect_ids(page, 1, 2)
    offer = "Show the new pet" if is_answered else "Show the pets after id 5"
    expect(button(page, offer)).to_be_in_viewport(ratio=1)
    expect_outcome(page, "Add a pet", text)
    button(page, offer).click()
    expect(page.get_by_role("cell")).to_have_text(["6", "Tom", "1", "available"])
    expect_outcome(page, "Pets", "1 pet of any status after id 5, no more follow.")
    # What a warning names stays: the pet may not be in this list.
    expect(button(page, offer)).to_be_visible(visible=not is_answered)


def test_a_lost_pet_is_on_one_page_with_all_newer_ones(
    page: Page, service: Service
) -> None:
    press_list(page)
    expect_outcome(page, "Pets", "No pets of any status.")
    add_pets(service, 99)
    page.route("**/v1/pets", lambda route: route.abort())
    press_add(page, "Ghost")
    # Somebody else adds the last pet.
    add_pets(service, 1)
    button(page, "Show the pets after id 0").click()
    expect_ids(page, *range(1, 101))


def test_a_pet_that_is_not_stored_is_not_found(page: Page, service: Service) -> None:
    add_pets(service, 1)
    press_list(page)
    expect_ids(page, 1)
    page.route("**/v1/pets", lambda route: route.abort())
    press_add(page, "Ghost")
    button(page, "Show the pets after id 1").click()
    expect_outcome(page, "Pets", "No pets of any status after id 1.")


def test_markup_in_a_name_is_text(page: Page) -> None:
    press_add(page, MARKUP, "-7")
    expect_outcome(page, "Add a pet", added(MARKUP[:30] + "…", 1))
    press_list(page)
    expect(page.get_by_role("cell")).to_have_text(["1", MARKUP, "-7", "available"])
    expect(page.get_by_role("group", name="Body")).to_contain_text(MARKUP)


def test_integers_stay_as_they_are(page: Page) -> None:
    large = (f"{2**53 + 1}", f"{MAX_INT64}", f"{~MAX_INT64}")
    # A keyboard for numbers has no minus on an iPhone.
    expect(page.get_by_label("Category id")).not_to_have_attribute(
        "inputmode", "numeric"
    )
    typed = (*large, " 12 ", "-007")
    numbers = [*large, "12", "-7"]
    body = page.get_by_role("group", name="Body")
    for text, number in zip(typed, numbers, strict=True):
        press_add(page, "Rex", text)
        expect(body).to_contain_text(f'"categoryId":{number},')
    press_list(page)
    expect(page.locator("td:nth-child(3)")).to_have_text(numbers)


def test_a_browser_that_hides_the_digits_may_round_but_works(page: Page) -> None:
    page.add_init_script(NO_SOURCE_TEXT)
    page.reload()
    page.get_by_label("API key").fill(KEY)
    press_add(page, "Rex", f"{2**53 + 1}")
    expect_outcome(page, "Add a pet", added("Rex", 1))
    body = page.get_by_role("group", name="Body")
    expect(body).to_contain_text(f'"categoryId":{2**53 + 1},')
    press_list(page)
    cells = ["1", "Rex", f"{2**53}", "available"]
    expect(page.get_by_role("cell")).to_have_text(cells)


def test_the_last_request_is_shown_as_received(page: Page) -> None:
    with page.expect_response("**/v1/pets") as received:
        press_add(page, SHELL_CHARACTERS)
    answer = received.value
    last_request = region(page, "Last request")
    expect(last_request).to_contain_text(f"{answer.status} {answer.status_text}")
    expect(last_request).to_contain_text("location: /v1/pets/1")
    body = page.get_by_role("group", name="Body")
    assert body.text_content() == answer.text()


def test_the_curl_line_gives_the_same_answer_in_a_shell(page: Page) -> None:
    body = page.get_by_role("group", name="Body")
    press_add(page, SHELL_CHARACTERS)
    expect_outcome(page, "Add a pet", re.compile(r"with id 1\.$"))
    pet = json.loads(run_curl_line(page))
    assert (pet["id"], pet["name"]) == (2, SHELL_CHARACTERS)
    region(page, "Pets").get_by_label("Status").select_option("available")
    press_list(page)
    expect_ids(page, 1, 2)
    assert run_curl_line(page) == body.text_content()


def test_what_is_selected_is_copied_as_it_is_shown(page: Page) -> None:
    press_add(page, SHELL_CHARACTERS)
    expect_outcome(page, "Add a pet", re.compile(r"with id 1\.$"))
    for name in ("Request", "Body"):
        line = page.get_by_role("group", name=name)
        line.click(click_count=3)
        line.press("Control+C")
        assert paste(page) == line.inner_text().strip()


def test_next_and_previous_page(page: Page, service: Service) -> None:
    next_page, previous_page = button(page, "Next page"), button(page, "Previous page")
    add_pets(service, 5)
    press_list(page, limit="2")
    expect_ids(page, 1, 2)
    expect(previous_page).to_be_disabled()
    next_page.click()
    expect_ids(page, 3, 4)
    # Quick clicks go page by page.
    next_page.dispatch_event("click", {"detail": 2})
    expect_ids(page, 5)
    expect(next_page).to_be_disabled()
    expect_outcome(page, "Pets", "Page 3: 1 pet of any status, no more follow.")
    # It keeps the focus, and sends nothing.
    page.keyboard.press("Enter")
    previous_page.click()
    expect_ids(page, 3, 4)
    previous_page.click()
    expect_ids(page, 1, 2)
    expect(previous_page).to_be_focused()
    assert sent_methods(page) == ["GET"] * 5


def test_the_outcome_names_the_filter_of_the_list(page: Page, service: Service) -> None:
    add_pets(service, 3)
    press_list(page, limit="1")
    expect_ids(page, 1)
    # What is chosen for the next list stays chosen.
    status = region(page, "Pets").get_by_label("Status")
    status.select_option("available")
    button(page, "Next page").click()
    expect_outcome(page, "Pets", "Page 2: 1 pet of any status, more follow.")
    expect(status).to_have_value("available")
    press_list(page, limit="2")
    expect_outcome(page, "Pets", "2 available pets, more follow.")
    button(page, "Next page").click()
    expect_outcome(page, "Pets", "Page 2: 1 available pet, no more follow.")


def test_next_page_finds_its_link_among_those_of_a_proxy(
    page: Page, tmp_path: Path
) -> None:
    with serving(tmp_path / "proxied.db", PROXIED) as service:
        add_pets(service, 2)
        page.goto(f"http://{service.address()}/")
        page.get_by_label("API key").fill(KEY)
        press_list(page, limit="1")
        button(page, "Next page").click()
        expect_ids(page, 2)
        expect(button(page, "Next page")).to_be_disabled()


def test_an_error_while_paging_keeps_the_page(page: Page, service: Service) -> None:
    add_pets(service, 3)
    press_list(page, limit="1")
    button(page, "Next page").click()
    expect_ids(page, 2)
    page.get_by_label("API key").fill("other")
    for name in ("Next page", "Previous page"):
        button(page, name).click()
        expect_outcome(page, "Pets", re.compile(f"^invalid_api_key: .*{EARLIER}$"))
        expect_ids(page, 2)
    page.get_by_label("API key").fill(KEY)
    button(page, "Next page").click()
    expect_ids(page, 3)


def test_no_click_counts_while_a_request_runs(page: Page, service: Service) -> None:
    def click_and_continue(route: Route) -> None:
        for name in ("List", "Add", "Next page", "Previous page"):
            button(page, name).click()
        route.continue_()

    add_pets(service, 4)
    press_list(page, limit="1")
    button(page, "Next page").click()
    expect_ids(page, 2)
    page.get_by_label("Name").fill("Rex")
    page.get_by_label("Category id").fill("1")
    page.route("**/v1/pets*", click_and_continue, times=1)
    button(page, "Next page").click()
    expect_ids(page, 3)
    page.route("**/v1/pets*", click_and_continue, times=1)
    button(page, "Add").click()
    expect_outcome(page, "Add a pet", added("Rex", 5))
    # After a POST, the page fetches its list again.
    assert sent_methods(page) == ["GET", "GET", "GET", "POST", "GET"]


def test_a_double_click_on_add_sends_one_request(page: Page) -> None:
    page.get_by_label("Name").fill("Rex")
    page.get_by_label("Category id").fill(f"{MAX_INT64 + 1}")
    button(page, "Add").click()
    expect_outcome(page, "Add a pet", re.compile("^invalid_body: "))
    # The second click may come after the answer.
    button(page, "Add").dispatch_event("click", {"detail": 2})
    press_list(page)
    expect_outcome(page, "Pets", "No pets of any status.")
    assert sent_methods(page) == ["POST", "GET"]


def test_an_enter_that_is_held_down_sends_one_request(
    page: Page, service: Service
) -> None:
    service.database.rename(service.database.with_name("moved.db"))
    page.get_by_label("Category id").fill("1")
    page.get_by_label("Name").fill("Rex")
    for _ in range(5):
        # From the second one on, it is a repeat.
        page.keyboard.down("Enter")
        expect_outcome(page, "Add a pet", re.compile(f"{WARNING}$"))
    page.keyboard.up("Enter")
    press_list(page)
    assert sent_methods(page) == ["POST", "GET"]


def test_a_proxy_may_want_a_cookie_and_strip_a_prefix(
    page: Page, service: Service
) -> None:
    class Proxy(BaseHTTPRequestHandler):
        """Show the service below /store, to those who have the cookie."""

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            with closing(service.connect()) as connection:
                path = self.path.removeprefix("/store")
                connection.request(self.command, path, body, dict(self.headers.items()))
                response = connection.getresponse()
                content = response.read()
            is_signed_in = path == "/" or "is_signed_in=yes" in self.headers["Cookie"]
            self.send_response(response.status if is_signed_in else 403)
            for name in ("Content-Type", "Link"):
                self.send_header(name, response.headers.get(name, ""))
            self.send_header("Set-Cookie", "is_signed_in=yes")
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET

        def log_message(self, *arguments: object) -> None:
            """Log nothing: the service has a log."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as proxy:
        Thread(target=proxy.serve_forever, daemon=True).start()
        page.goto(f"http://127.0.0.1:{proxy.server_port}/store/")
        page.get_by_label("API key").fill(KEY)
        for name, pet_id in ("Rex", 1), ("Tom", 2):
            press_add(page, name)
            expect_outcome(page, "Add a pet", added(name, pet_id))
        press_list(page, limit="1")
        expect_ids(page, 1)
        button(page, "Next page").click()
        expect_ids(page, 2)
        proxy.shutdown()
    page.context.clear_cookies()


def test_what_is_typed_while_a_request_runs_stays(page: Page) -> None:
    def type_and_continue(route: Route) -> None:
        page.get_by_label("Category id").fill("2")
        region(page, "Pets").get_by_label("Status").select_option("sold")
        route.continue_()

    press_list(page)
    expect_outcome(page, "Pets", "No pets of any status.")
    page.route("**/v1/pets", type_and_continue)
    press_add(page, "Rex")
    expect_outcome(page, "Pets", "1 pet of any status, no more follow.")
    expect(page.get_by_label("Category id")).to_have_value("2")
    expect(region(page, "Pets").get_by_label("Status")).to_have_value("sold")


def test_a_translator_changes_no_values(page: Page) -> None:
    page.evaluate(TRANSLATE)
    page.locator("#name").fill("Rex")
    page.locator("#categoryId").fill("1")
    page.locator("#new-status").select_option(index=2)
    page.locator("#add").click()
    expect(page.locator("#add-outcome")).to_have_text(added("Rex", 1))
    page.locator("#status").select_option(index=3)
    page.locator("#list").click()
    outcome = page.locator("#list-outcome")
    expect(outcome).to_have_text("1 sold pet, no more follow.")
    values = page.locator("td, pre")
    before = values.all_text_contents()
    assert before[:4] == ["1", "Rex", "1", "sold"]
    page.evaluate(TRANSLATE)
    expect(outcome).to_have_text("verkauft")
    assert values.all_text_contents() == before


@pytest.mark.parametrize(
    ("name", "escaped"),
    [("a  \u202eb", r"a  \u202eb"), ("a\u2069 \u202eb", r"a\u2069 \u202eb")],
)
def test_a_name_changes_no_direction_and_keeps_its_spaces(
    page: Page, name: str, escaped: str
) -> None:
    press_add(page, name)
    expect_outcome(page, "Add a pet", added(escaped, 1))
    # The full stop is at the end, on the right.
    ends = region(page, "Add a pet").get_by_role("status").evaluate(RIGHT_ENDS)
    assert max(ends) == ends[-1]
    expect_ids(page, 1)
    assert page.locator("td .name").inner_text() == escaped
    for group in ("Request", "Body"):
        line = page.get_by_role("group", name=group)
        expect(line).to_contain_text(f'"{escaped}"')
    assert json.loads(run_curl_line(page))["name"] == name


def test_a_blank_name_is_in_quotes(page: Page, service: Service) -> None:
    for name in ("", "\u200b", "\xad", "\n"):
        service.request("POST", "/v1/pets", {**NEW_PET, "name": name})
    press_add(page, "  ")
    expect_outcome(page, "Add a pet", added('"  "', 5))
    names = ['""', r'"\u200b"', r'"\u00ad"', r'"\n"', '"  "']
    expect(page.locator(".name")).to_have_text(names)


def test_copied_rows_have_one_line_each(page: Page, service: Service) -> None:
    add_pets(service, 2)
    press_list(page)
    expect_ids(page, 1, 2)
    page.evaluate("getSelection().selectAllChildren(document.querySelector('tbody'))")
    page.keyboard.press("Control+C")
    # An input would join the lines.
    page.evaluate("document.querySelector('#name').outerHTML = '<textarea id=name>'")
    lines = paste(page).split("\n")
    assert lines[:2] == ["1\tRex\t1\tavailable", "2\tRex\t1\tavailable"]


def test_the_keyboard_is_enough(page: Page, service: Service) -> None:
    def press_tab(target: Locator, text: str = "") -> None:
        page.keyboard.press("Tab")
        expect(target).to_be_focused()
        page.keyboard.type(text)

    add_pets(service, 2)
    page.reload()
    page.keyboard.type(KEY)
    # The other sections are beside the list, so no link leads to them.
    press_tab(region(page, "Pets").get_by_label("Status"))
    press_tab(page.get_by_label("Limit"), "1")
    press_tab(button(page, "List"))
    page.keyboard.press("Enter")
    expect_ids(page, 1)
    press_tab(button(page, "Previous page"))
    press_tab(button(page, "Next page"))
    page.keyboard.press("Space")
    expect_ids(page, 2)
    press_tab(page.get_by_label("Name"), "Tom")
    press_tab(page.get_by_label("Category id"), "5")
    press_tab(region(page, "Add a pet").get_by_label("Status"), "sold")
    press_tab(button(page, "Add"))
    page.keyboard.press("Enter")
    expect_outcome(page, "Add a pet", added("Tom", 3))
    pet = {"id": 3, "name": "Tom", "categoryId": 5, "status": "sold"}
    assert service.request("GET", "/v1/pets").body[2] == pet
    # The next pet can be typed at once.
    expect(page.get_by_label("Name")).to_be_focused()
    expect(page.get_by_label("Name")).to_have_value("")
    expect(page.get_by_label("Category id")).to_have_value("")
    expect(region(page, "Add a pet").get_by_label("Status")).to_have_value("available")


def test_tab_stops_at_nothing_that_is_empty(page: Page) -> None:
    page.route("**/v1/pets", lambda route: route.abort())
    press_add(page, "Rex")
    expect_outcome(page, "Add a pet", re.compile(f"{WARNING}$"))
    page.get_by_role("group", name="Request").focus()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="OpenAPI document")).to_be_focused()


@on_a_phone
def test_long_values_fit_on_a_phone(page: Page) -> None:
    boxes = page.locator("html, section, pre")
    for pet_id in (1, 2):
        press_add(page, "x" * 900, f"{~MAX_INT64}")
        # A whole name would hide the id.
        outcome = added("x" * 30 + "…", pet_id)
        expect_outcome(page, "Add a pet", outcome)
        assert boxes.evaluate_all(TOO_WIDE, 380) == []
    # The first name is cut after a few lines. Once it had the focus, it scrolls.
    expect(page.get_by_role("row").last).to_be_in_viewport(ratio=1)
    name = page.get_by_role("group", name="Pet 1")
    expect(name).to_have_css("cursor", "pointer")
    height = name.evaluate("(element) => element.clientHeight")
    button(page, "List").focus()
    page.keyboard.press("Tab")
    expect(name).to_be_focused()
    expect(name).to_have_css("overflow-y", "auto")
    assert height < name.evaluate("(element) => element.clientHeight") <= 400
    # Otherwise, what is below would move while it is clicked.
    button(page, "Add").focus()
    assert height < name.evaluate("(element) => element.clientHeight")


@on_a_phone
def test_the_columns_stay_where_they_are(page: Page) -> None:
    columns = page.get_by_role("columnheader")
    positions = "(columns) => columns.map((column) => column.getBoundingClientRect().x)"
    for pet_id, name in (1, "Rex"), (2, "x" * 40):
        press_add(page, name, f"{MAX_INT64}" if pet_id == 2 else "1")
        expect_outcome(page, "Add a pet", re.compile(f" with id {pet_id}.$"))
    press_list(page, limit="1")
    expect_ids(page, 1)
    before = columns.evaluate_all(positions)
    button(page, "Next page").click()
    expect_ids(page, 2)
    assert columns.evaluate_all(positions) == before


@pytest.mark.parametrize(
    ("width", "largest_id"),
    [(1280, 999_999_999), (900, 999_999_999), (380, 9_999_999), (320, 99_999)],
)
def test_an_id_and_a_short_name_stay_on_one_line(
    page: Page, service: Service, width: int, largest_id: int
) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    insert = "INSERT INTO pets VALUES ({}, 'Charlie', -9223372036854775808, 'sold')"
    ids = (9, largest_id)
    with other_program(service.database, *(insert.format(each) for each in ids)):
        press_list(page)
    expect_ids(page, *ids)
    cells = "td:nth-child(1), .name, .status"
    if width >= 900:
        cells += ", td:nth-child(3)"
    assert {*page.locator(cells).evaluate_all(LINES)} == {1}
    assert page.locator("html, section, pre").evaluate_all(TOO_WIDE, width) == []


@pytest.mark.parametrize("height", [600, 800, 2000])
@pytest.mark.parametrize("width", [1280, 900, 380])
def test_the_buttons_of_the_pages_stay_under_the_mouse(
    page: Page, service: Service, width: int, height: int
) -> None:
    page.set_viewport_size({"width": width, "height": height})
    add_pets(service, 25)
    press_list(page, limit="10")
    expect_outcome(page, "Pets", "10 pets of any status, more follow.")
    place = "(button) => [button.getBoundingClientRect().x, "
    place += "button.getBoundingClientRect().y]"
    for scroll in (0, 500):
        page.evaluate(f"scrollTo(0, {scroll})")
        for name, text in (
            ("Next page", "Page 2: 10 pets of any status, more follow."),
            ("Next page", "Page 3: 5 pets of any status, no more follow."),
            ("Previous page", "Page 2: 10 pets of any status, more follow."),
            ("Previous page", "10 pets of any status, more follow."),
        ):
            before = button(page, name).evaluate(place)
            button(page, name).click()
            expect_outcome(page, "Pets", text)
            expect(page.get_by_role("row").nth(1)).to_be_in_viewport()
            assert button(page, name).evaluate(place) == pytest.approx(before, abs=1)


@on_a_phone
def test_a_wait_is_seen_at_once(page: Page, service: Service) -> None:
    add_pets(service, 40)
    press_list(page)
    expect_outcome(page, "Pets", "20 pets of any status, more follow.")
    os.killpg(service.process.pid, signal.SIGSTOP)
    button(page, "Next page").click()
    expect_outcome(page, "Pets", "Waiting for the answer …")
    expect(button(page, "List")).to_have_css("opacity", "0.4")
    os.killpg(service.process.pid, signal.SIGCONT)
    expect_outcome(page, "Pets", "Page 2: 20 pets of any status, no more follow.")
    expect(button(page, "List")).to_have_css("opacity", "1")


@on_a_phone
def test_links_lead_to_what_is_below_a_long_list(page: Page, service: Service) -> None:
    add_pets(service, 30)
    expect(page.get_by_role("link", name="Last request")).to_be_hidden()
    press_list(page, limit="30")
    expect_outcome(page, "Pets", "30 pets of any status, no more follow.")
    for link, target in (
        ("Add a pet", page.get_by_label("Name")),
        ("Last request", page.get_by_role("group", name="Request")),
    ):
        page.evaluate("scrollTo(0, 0)")
        expect(target).not_to_be_in_viewport()
        page.get_by_role("link", name=link).click()
        expect(target).to_be_in_viewport()


@on_a_phone
def test_buttons_and_the_key_fill_the_width_of_a_phone(
    page: Page, service: Service
) -> None:
    add_pets(service, 2)
    press_list(page, limit="1")
    press_add(page, "Rex")
    expect(button(page, "Show the new pet")).to_be_visible()
    for name in ("List", "Add", "Show the new pet"):
        box = button(page, name).bounding_box()
        assert box and box["width"] > 300
    first, second = (
        button(page, name).bounding_box() for name in ("Previous page", "Next page")
    )
    assert first and second and first["width"] + second["width"] > 300
    key = page.get_by_label("API key").bounding_box()
    assert key and key["x"] + key["width"] > 360


def test_the_form_stays_in_sight_beside_a_long_list(
    page: Page, service: Service
) -> None:
    add_pets(service, 60)
    press_list(page, limit="60")
    expect_outcome(page, "Pets", "60 pets of any status, no more follow.")
    page.get_by_role("row").last.scroll_into_view_if_needed()
    expect(button(page, "Add")).to_be_in_viewport(ratio=1)
    expect(page.get_by_role("group", name="Request")).to_be_in_viewport(ratio=1)


@on_a_phone
def test_an_outcome_comes_into_sight(page: Page, service: Service) -> None:
    add_pets(service, 25)
    press_list(page)
    expect_outcome(page, "Pets", "20 pets of any status, more follow.")
    # The button is below the pets, and the outcome is above them.
    button(page, "Next page").click()
    expect_outcome(page, "Pets", "Page 2: 5 pets of any status, no more follow.")
    press_add(page, "Rex")
    expect_outcome(page, "Add a pet", added("Rex", 26))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_marks_and_borders_can_be_seen(
    page: Page, service: Service, scheme: Literal["light", "dark"]
) -> None:
    page.emulate_media(color_scheme=scheme)
    for status in ("available", "pending", "sold"):
        service.request("POST", "/v1/pets", {**NEW_PET, "status": status})
    press_list(page, limit="3")
    expect_ids(page, 1, 2, 3)
    press_add(page, "Rex", f"{MAX_INT64 + 1}")
    expect_outcome(page, "Add a pet", re.compile("^invalid_body: "))
    page.evaluate(AXE.read_text("utf-8"))
    expect_contrast(page, ".success", ".error", ".available", ".pending", ".sold")
    page.route("**/v1/pets", lambda route: route.abort())
    press_add(page, "Rex")
    expect_outcome(page, "Add a pet", re.compile(f"{WARNING}$"))
    expect_contrast(page, ".warning")
    around, card = color(page, "html"), color(page, "section")
    # The card is lighter: its contrast to black is higher.
    assert contrast(page, [card], ["black"]) > contrast(page, [around], ["black"])
    border = color(page, "section", "borderTopColor")
    assert contrast(page, [border], [around]) > 1.4
    assert contrast(page, [border], [card]) > 1.4
    for field in ("#name", "#status", "#copy"):
        assert contrast(page, [color(page, field, "borderTopColor")], [card]) > 3


def test_a_screen_reader_reads_names_and_no_marks(page: Page, service: Service) -> None:
    add_pets(service, 2)
    press_list(page, limit="1")
    expect_ids(page, 1)
    press_add(page, "Rex", f"{MAX_INT64 + 1}")
    expect_outcome(page, "Add a pet", re.compile("^invalid_body: "))
    named = page.locator("section, table, input, select, button, [tabindex]")
    for element in named.filter(visible=True).all():
        expect(element).to_have_accessible_name(re.compile("."))
    marks = {".success": "✓", ".error": "✗", ".available .status": "●"}
    for selector, mark in marks.items():
        element = page.locator(selector)
        expect(element).to_have_css("content", re.compile(mark), pseudo="before")
    assert not set("✓✗●◐○") & set(page.locator("html").aria_snapshot())
