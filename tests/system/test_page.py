"""The page at / in Chromium: what a person does and sees there.

Each test has a service, a database and a browser context of its own.
"""

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.helpers import KEY, NEW_PET
from tests.service import (
    FLASK,
    GUNICORN,
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
WARNING = " The pet may be stored. Look for it before you press Add again."
MARKUP = "<img src=x onerror='document.title = 1'><script>alert(1)</script>"
SHELL_CHARACTERS = """It's "$HOME" `id` \\ !! <API_KEY> é🐈"""
# In browsers from before 2023 to 2025, the reviver gets no context.
NO_SOURCE_TEXT = """
    const parse = JSON.parse;
    JSON.parse = (text, reviver) =>
        parse(text, reviver && ((name, value) => reviver(name, value)));
"""
# Return whether nothing covers the center of an element.
IS_ON_TOP = """
    (element) => {
        const { x, y, width, height } = element.getBoundingClientRect();
        return element.contains(
            document.elementFromPoint(x + width / 2, y + height / 2));
    }
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


@pytest.mark.parametrize("key", ["", "demo–key", "demo\u200bkey", f"Bearer {KEY}"])
def test_nothing_is_sent_without_a_key_that_a_header_can_carry(
    page: Page, key: str
) -> None:
    page.get_by_label("API key").fill(key)
    expect_outcomes(page, 'Enter the API key at the top of the page, without "Bearer".')
    expect_wrong(page.get_by_label("API key"))
    assert sent_methods(page) == []


def test_a_wrong_key_is_an_error(page: Page) -> None:
    page.get_by_label("API key").fill("other")
    expect_outcomes(page, re.compile("^invalid_api_key: The API key is not valid"))
    expect(region(page, "Last request")).to_contain_text("401 UNAUTHORIZED")
    expect_wrong(page.get_by_label("API key"))


def test_an_error_is_its_code_and_its_message(page: Page, service: Service) -> None:
    error = service.request("GET", "/v1/pets?limit=0").body
    press_list(page, limit="0")
    expect_outcome(page, "Pets", f"{error['code']}: {error['message']}")
    expect_wrong(page.get_by_label("Limit"))
    error = service.request("POST", "/v1/pets", {**NEW_PET, "categoryId": "many"}).body
    press_add(page, "Rex", f"{MAX_INT64 + 1}")
    expect_outcome(page, "Add a pet", f"{error['code']}: {error['message']}")
    expect_wrong(page.get_by_label("Category id"))
    press_add(page, "Rex")
    expect_outcome(page, "Add a pet", added("Rex", 1))
    expect(page.locator("[aria-invalid]")).to_have_count(0)


def test_a_category_id_that_is_no_number_is_not_sent(page: Page) -> None:
    for category_id in ("many", " ", "1.5", "007", "１２"):
        press_add(page, "Rex", category_id)
        expect(page.locator("#categoryId:invalid")).to_be_focused()
    assert sent_methods(page) == []


@pytest.mark.parametrize("body", ["<h1>Bad Gateway</h1>", '{"message":"timed out"}'])
def test_an_answer_of_a_proxy_is_an_error(page: Page, body: str) -> None:
    page.route("**/v1/pets*", lambda route: route.fulfill(status=502, body=body))
    text = "502 Bad Gateway: this is not an answer of the service."
    expect_outcomes(page, text, WARNING)
    expect(page.get_by_role("group", name="Body")).to_have_text(body)


def test_no_answer_is_an_error(page: Page) -> None:
    page.route("**/v1/pets*", lambda route: route.abort())
    text = "No answer (Failed to fetch). Is the service running?"
    expect_outcomes(page, text, WARNING)


def test_an_answer_that_breaks_off_is_an_error(page: Page) -> None:
    def answer_half(route: Route) -> None:
        answer = route.fetch()
        assert answer.status == 201
        route.fulfill(response=answer, body=answer.body()[:20])

    page.route("**/v1/pets", answer_half)
    press_add(page, "Ghost")
    text = "201 Created: this is not an answer of the service."
    expect_outcome(page, "Add a pet", f"{text}{WARNING}")


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
def test_a_new_pet_is_one_press_away(page: Page, service: Service) -> None:
    add_pets(service, 5)
    press_list(page, limit="2")
    expect_ids(page, 1, 2)
    press_add(page, "Tom")
    expect_outcome(page, "Add a pet", added("Tom", 6))
    expect_ids(page, 1, 2)
    expect(button(page, "Show the new pet")).to_be_in_viewport(ratio=1)
    page.route("**/v1/pets*", lambda route: route.abort(), times=1)
    button(page, "Show the new pet").click()
    expect_outcome(page, "Pets", re.compile("^No answer "))
    button(page, "Show the new pet").click()
    expect(page.get_by_role("cell")).to_have_text(["6", "Tom", "1", "available"])
    expect_outcome(page, "Pets", "1 pet of any status, no more follow.")
    expect(button(page, "Show the new pet")).to_be_hidden()
    expect(button(page, "Previous page")).to_be_focused()
    button(page, "Previous page").click()
    expect_ids(page, 1, 2)


def test_markup_in_a_name_is_text(page: Page) -> None:
    press_add(page, MARKUP, "-7")
    expect_outcome(page, "Add a pet", added(MARKUP, 1))
    press_list(page)
    expect(page.get_by_role("cell")).to_have_text(["1", MARKUP, "-7", "available"])
    expect(page.get_by_role("group", name="Body")).to_contain_text(MARKUP)


def test_integers_stay_as_they_are(page: Page) -> None:
    large = (f"{2**53 + 1}", f"{MAX_INT64}", f"{~MAX_INT64}")
    # A keyboard for numbers has no minus on an iPhone.
    expect(page.get_by_label("Category id")).not_to_have_attribute(
        "inputmode", "numeric"
    )
    typed = (*large, " 12 ", "-7")
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


def test_next_and_previous_page(page: Page, service: Service) -> None:
    next_page, previous_page = button(page, "Next page"), button(page, "Previous page")
    add_pets(service, 5)
    press_list(page, limit="2")
    expect_ids(page, 1, 2)
    expect(previous_page).to_be_disabled()
    next_page.click()
    expect_ids(page, 3, 4)
    next_page.click()
    expect_ids(page, 5)
    expect(next_page).to_be_disabled()
    expect_outcome(page, "Pets", "Page 3: 1 pet of any status, no more follow.")
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


def test_an_error_while_paging_keeps_the_page(page: Page, service: Service) -> None:
    add_pets(service, 3)
    press_list(page, limit="1")
    button(page, "Next page").click()
    expect_ids(page, 2)
    page.get_by_label("API key").fill("other")
    for name in ("Next page", "Previous page"):
        button(page, name).click()
        expect_outcome(page, "Pets", re.compile("^invalid_api_key: "))
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


@on_a_phone
def test_long_values_fit_on_a_phone(page: Page) -> None:
    press_add(page, "x" * 900, f"{~MAX_INT64}")
    expect_outcome(page, "Add a pet", added("x" * 900, 1))
    expect_ids(page, 1)
    boxes = page.locator("html, section, pre")
    assert boxes.evaluate_all(TOO_WIDE, 380) == []


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
def test_a_link_leads_to_the_form_below_a_long_list(
    page: Page, service: Service
) -> None:
    add_pets(service, 30)
    press_list(page, limit="30")
    expect_outcome(page, "Pets", "30 pets of any status, no more follow.")
    page.evaluate("scrollTo(0, 0)")
    expect(page.get_by_label("Name")).not_to_be_in_viewport()
    page.get_by_role("link", name="Add a pet").click()
    expect(page.get_by_label("Name")).to_be_in_viewport()
    expect(page.get_by_role("heading", name="Add a pet")).to_be_in_viewport(ratio=1)


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
def test_texts_can_be_read(
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
    result = page.evaluate("axe.run({ runOnly: ['wcag2a', 'wcag2aa', 'wcag21aa'] })")
    assert result["violations"] == []


def test_a_screen_reader_reads_names_and_no_marks(page: Page, service: Service) -> None:
    add_pets(service, 2)
    press_list(page, limit="1")
    expect_ids(page, 1)
    press_add(page, "Rex", f"{MAX_INT64 + 1}")
    expect_outcome(page, "Add a pet", re.compile("^invalid_body: "))
    named = page.locator("section, table, input, select, button, [tabindex]")
    for element in named.filter(visible=True).all():
        expect(element).to_have_accessible_name(re.compile("."))
    marks = {".success": "✓", ".error": "✗", "td.available": "●"}
    for selector, mark in marks.items():
        element = page.locator(selector)
        expect(element).to_have_css("content", re.compile(mark), pseudo="before")
    assert not set("✓✗●◐○") & set(page.locator("html").aria_snapshot())
