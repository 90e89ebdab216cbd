"""Try the page in headless Chromium: page.py URL KEY. The store must be empty."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

from selenium.webdriver import ActionChains, Chrome, ChromeOptions, Keys
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

SWITCHES = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--window-size=1400,900",
)
PHONE = {"width": 380, "height": 740, "deviceScaleFactor": 1, "mobile": True}

MARKUP = "<img src=x onerror='document.title = 1'><script>alert(1)</script>"
LONG_NAME = "x" * 60_000
# The id of the category is past 2^53: JavaScript would round it to ...992.
THREE_PETS = [
    ("Rex", "1", "available"),
    (MARKUP, "9007199254740993", "pending"),
    (LONG_NAME, "-7", "sold"),
]
PET_FIELDS = ("name", "category-id", "new-status")
SHELL_CHARACTERS = """It's "$HOME" `id` \\ !! <API_KEY> é"""

IS_IN_VIEW = """
    const box = document.querySelector(arguments[0]).getBoundingClientRect();
    return box.top >= 0 && box.bottom <= innerHeight;
"""
SCROLLING_SIDEWAYS = """
    return [...document.querySelectorAll(":not(input)")]
        .filter((element) => element.scrollWidth > element.clientWidth)
        .filter((element) => getComputedStyle(element).overflowX !== "visible")
        .map((element) => element.outerHTML);
"""
UNLABELED_FIELDS = """
    return [...document.querySelectorAll("input, select")]
        .filter((field) => !field.labels[0]?.textContent)
        .map((field) => field.outerHTML);
"""
STORED_CHARACTERS = (
    "return document.cookie.length + localStorage.length + sessionStorage.length"
)
REQUESTED = "return performance.getEntries().map((entry) => entry.name)"


class Page:
    """The page in a browser, with what a person does and sees there."""

    def __init__(self, browser: Chrome, url: str, key: str) -> None:
        self.browser = browser
        self.url = url
        self.key = key

    def run(self, script: str, *arguments: object) -> Any:
        """Run JavaScript in the page and return its result."""
        return self.browser.execute_script(script, *arguments)

    def element(self, element_id: str) -> WebElement:
        return self.browser.find_element(By.ID, element_id)

    def text(self, element_id: str) -> str:
        """Return the text of an element, including text in a closed <details>."""
        return str(self.element(element_id).get_property("textContent")).strip()

    def value(self, element_id: str) -> str:
        return str(self.element(element_id).get_property("value"))

    def focused(self) -> str:
        """Return the id of the element that has the focus."""
        return str(self.run("return document.activeElement.id"))

    def rows(self, selector: str = "#pet-rows tr") -> list[list[str]]:
        """Return the text of each cell of the table's rows."""
        script = "return [...arguments[0].cells].map((cell) => cell.textContent)"
        found = self.browser.find_elements(By.CSS_SELECTOR, selector)
        return [self.run(script, row) for row in found]

    def ids(self) -> list[str]:
        """Return the ids of the pets in the table."""
        return [row[0] for row in self.rows()]

    def fill(self, element_id: str, text: str) -> None:
        field = self.element(element_id)
        field.clear()
        field.click()
        # send_keys takes long for 60,000 characters.
        self.browser.execute_cdp_cmd("Input.insertText", {"text": text})

    def fill_pet(self, name: str, category_id: str, status: str = "available") -> None:
        self.fill("name", name)
        self.fill("category-id", category_id)
        self.element("new-status").send_keys(status)

    def press(self, button: str) -> str:
        """Press a button and return the answer that the page shows."""
        self.element(button).click()
        return self.answer()

    def answer(self) -> str:
        """Return the answer to the last request, in the words of the page."""
        wait = WebDriverWait(self.browser, 10, 0.05)
        wait.until(lambda _: not self.text("answer").startswith("Waiting"))
        return self.text("answer")

    def press_keys(self, *keys: str) -> None:
        ActionChains(self.browser).send_keys(*keys).perform()

    def tab_to(self, element_id: str) -> None:
        """Press Tab until an element has the focus."""
        for _ in range(20):
            self.press_keys(Keys.TAB)
            if self.focused() == element_id:
                return
        raise AssertionError(f"Tab does not reach {element_id}")


def check_fields_and_link(page: Page) -> None:
    assert page.run(UNLABELED_FIELDS) == []
    legends = page.browser.find_elements(By.CSS_SELECTOR, "form legend")
    assert [legend.text for legend in legends] == ["Pets", "Add a pet"]
    link = page.element("document-link")
    assert link.text == "OpenAPI document (JSON)"
    with urlopen(str(link.get_property("href")), timeout=10) as answer:
        assert json.load(answer)["info"]["title"] in page.browser.title


def check_api_key(page: Page) -> None:
    page.element("add-button").click()
    assert page.text("key-hint") == "Enter the API key first."
    assert page.focused() == "key"
    assert page.text("answer") == "Nothing sent yet."
    page.fill("key", f"not {page.key} é€")
    answer = page.press("list-button")
    assert answer.startswith("401 "), answer
    assert "invalid_api_key: The API key is not valid." in answer, answer
    assert page.text("key-hint") == ""
    page.fill("key", page.key)


def check_empty_store(page: Page) -> None:
    assert page.press("list-button") == "200 OK · No pets yet"
    assert page.text("pets-summary") == "No pets yet"


def check_add(page: Page) -> None:
    for number, pet in enumerate(THREE_PETS, 1):
        page.fill_pet(*pet)
        answer = page.press("add-button")
        assert answer.lower() == f"201 created · pet {number} added", answer
        # The form, the curl line, the body and the table agree.
        assert tuple(page.value(field) for field in PET_FIELDS) == pet
        _, category_id, status = pet
        json_text = f'"categoryId":{category_id},"status":"{status}"}}'
        assert json_text in page.text("curl")
        assert json_text in page.text("received")
        assert page.rows(".new-pet") == [[str(number), *pet]]
        assert len(page.rows()) == number
    assert page.press("list-button") == "200 OK · 3 pets"
    assert page.rows() == [
        [str(number), *pet] for number, pet in enumerate(THREE_PETS, 1)
    ]
    assert page.rows(".new-pet") == []
    height = page.run("return document.documentElement.scrollHeight")
    assert height < 1200, f"the page is {height} pixels high"


def check_refused_pet(page: Page) -> None:
    page.fill_pet("Rex", "many")
    answer = page.press("add-button")
    assert answer.startswith("400 "), answer
    assert "invalid_body: categoryId: Not a valid integer." in answer, answer
    assert '"invalid_body"' in page.text("received")


def check_next_page(page: Page) -> None:
    page.fill("limit", "2")
    assert page.press("list-button") == "200 OK · 2 pets, more follow"
    assert page.ids() == ["1", "2"]
    assert page.press("next-button") == "200 OK · 1 pet"
    assert page.ids() == ["3"]
    assert not page.element("next-button").is_displayed()
    page.element("list-status").send_keys("sold")
    page.press("list-button")
    assert page.ids() == ["3"]
    page.element("list-status").send_keys("any")


def run_curl_line(page: Page) -> tuple[str, str]:
    """Run the curl line in bash, with the key, and return the status and the body."""
    line = page.text("curl").replace("<API_KEY>", page.key, 1)
    environment = {"PATH": os.environ["PATH"]}
    output = subprocess.check_output(
        ["bash", "-c", line], env=environment, timeout=10, stderr=subprocess.DEVNULL
    )
    head, _, body = output.decode().partition("\r\n\r\n")
    return head.split()[1], body


def check_curl_lines(page: Page) -> None:
    page.press("list-button")
    status, body = run_curl_line(page)
    assert status == "200"
    assert body.strip() == page.text("received").partition("\n\n")[2]
    page.fill_pet(SHELL_CHARACTERS, "4")
    page.press("add-button")
    status, body = run_curl_line(page)
    assert status == "201"
    assert json.loads(body)["name"] == SHELL_CHARACTERS


def check_double_click(page: Page) -> None:
    before = len(page.rows())
    page.run("for (const _ of '12') document.querySelector('#add-button').click()")
    page.answer()
    assert len(page.rows()) == before + 1


def check_long_table(page: Page) -> None:
    for _ in range(20):
        page.press("add-button")
    assert page.run(IS_IN_VIEW, ".new-pet")
    assert page.run(IS_IN_VIEW, "#answer")


def check_phone(page: Page) -> None:
    page.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
    page.fill("limit", "12")
    for button in ("list-button", "next-button"):
        page.press(button)
        assert len(page.rows()) == 12
        assert page.run(IS_IN_VIEW, "#pets-summary")
        assert page.run(IS_IN_VIEW, "#pet-rows tr")
    page.press("add-button")
    assert page.run(IS_IN_VIEW, ".new-pet")
    page.fill_pet(LONG_NAME, "many")
    page.press("add-button")
    assert page.run(IS_IN_VIEW, "#answer")
    page.browser.find_element(By.TAG_NAME, "summary").click()
    page.press("list-button")
    assert LONG_NAME in page.text("pet-rows")
    assert page.run(SCROLLING_SIDEWAYS) == []
    width = page.run("return document.documentElement.scrollWidth")
    assert width == 380, f"the page is {width} pixels wide"
    height = page.run("return document.documentElement.scrollHeight")
    assert height < 4000, f"the page is {height} pixels high"
    page.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def check_keyboard(page: Page) -> None:
    page.browser.get(page.url)
    page.press_keys(page.key, Keys.ENTER)
    assert page.answer() == "200 OK · 20 pets, more follow"
    page.tab_to("limit")
    page.press_keys("15", Keys.ENTER)
    assert page.answer() == "200 OK · 15 pets, more follow"
    page.tab_to("next-button")
    page.press_keys(Keys.ENTER)
    assert "more follow" not in page.answer()
    assert page.focused() == "list-button"
    page.tab_to("name")
    page.press_keys("Tom")
    page.tab_to("category-id")
    page.press_keys("2")
    page.tab_to("new-status")
    page.press_keys("sold")
    page.tab_to("add-button")
    page.press_keys(Keys.SPACE)
    assert page.answer().startswith("201 ")
    assert page.rows(".new-pet")[0][1:] == ["Tom", "2", "sold"]


def check_privacy(page: Page) -> None:
    assert page.run(STORED_CHARACTERS) == 0
    hosts = {urlsplit(url).netloc for url in page.run(REQUESTED)}
    assert hosts == {urlsplit(page.url).netloc, ""}, hosts
    # The name that is markup was shown as text.
    assert page.run("return document.querySelectorAll('img, main script').length") == 0


def check_console(page: Page) -> None:
    """Check that the only errors in the console are the three refused requests."""
    entries = page.browser.get_log("browser")
    log = [entry["message"] for entry in entries if entry["level"] == "SEVERE"]
    statuses = [re.findall(r"status of (\d+)", message) for message in log]
    assert statuses == [["401"], ["400"], ["400"]], log


def check_offline(page: Page) -> None:
    page.browser.set_network_conditions(offline=True, latency=0, throughput=0)
    answer = page.press("list-button")
    assert answer == "No answer (Failed to fetch). Is the service running?", answer
    page.browser.delete_network_conditions()


def check_old_browser(page: Page) -> None:
    page.browser.execute_cdp_cmd(
        "Page.addScriptToEvaluateOnNewDocument", {"source": "delete JSON.rawJSON"}
    )
    page.browser.get(page.url)
    main = page.browser.find_element(By.TAG_NAME, "main")
    assert main.text == "This page needs a browser from 2025 or later."


@contextmanager
def start_browser() -> Iterator[Chrome]:
    options = ChromeOptions()
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with TemporaryDirectory() as profile:
        for switch in (*SWITCHES, f"--user-data-dir={profile}"):
            options.add_argument(switch)
        with Chrome(options, Service("/usr/bin/chromedriver")) as browser:
            yield browser


def main(url: str, key: str) -> None:
    with start_browser() as browser:
        page = Page(browser, url, key)
        browser.get(url)
        check_fields_and_link(page)
        check_api_key(page)
        check_empty_store(page)
        check_add(page)
        check_refused_pet(page)
        check_next_page(page)
        check_curl_lines(page)
        check_double_click(page)
        check_long_table(page)
        check_phone(page)
        check_privacy(page)
        check_keyboard(page)
        check_privacy(page)
        check_console(page)
        check_offline(page)
        check_old_browser(page)
    print(f"ran: the page at {url} in Chromium")


if __name__ == "__main__":
    main(*sys.argv[1:])
