"""Try the page in headless Chromium: page.py URL KEY. The store must be empty."""

import json
import subprocess
import sys
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
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--window-size=1400,900",
)
PHONE = {"width": 380, "height": 740, "deviceScaleFactor": 1, "mobile": True}

MARKUP = "<img src=x onerror='document.title = 1'><script>alert(1)</script>"
SHELL_CHARACTERS = """It's "$HOME" `id` \\ !! <API_KEY> é"""
UNLABELED_FIELDS = """
    return [...document.querySelectorAll("input, select")]
        .filter((field) => !field.labels[0]?.textContent)
        .map((field) => field.outerHTML);
"""
IN_SIGHT = """
    const box = arguments[0].getBoundingClientRect();
    return box.top >= 0 && box.bottom <= innerHeight;
"""
STORED = "return document.cookie + JSON.stringify([localStorage, sessionStorage])"
REQUESTED = "return performance.getEntries().map((entry) => entry.name)"


class Page:
    """The page in a browser, with what a person does and sees there."""

    def __init__(self, browser: Chrome, url: str, key: str) -> None:
        self.browser = browser
        self.url = url
        self.key = key

    def run(self, script: str, *arguments: Any) -> Any:
        """Run JavaScript in the page, and return its result."""
        return self.browser.execute_script(script, *arguments)

    def element(self, element_id: str) -> WebElement:
        return self.browser.find_element(By.ID, element_id)

    def text(self, element_id: str) -> str:
        return self.element(element_id).text

    def rows(self) -> list[list[str]]:
        """Return the text of each cell of the table."""
        rows = self.browser.find_elements(By.CSS_SELECTOR, "tbody tr")
        return [
            [cell.text for cell in row.find_elements(By.TAG_NAME, "td")] for row in rows
        ]

    def fill(self, label: str, value: str) -> None:
        """Find a field by its label, and type the value or select it."""
        path = f"//label[.='{label}']"
        field = self.element(
            self.browser.find_element(By.XPATH, path).get_attribute("for")
        )
        if field.tag_name == "input":
            field.clear()
        field.send_keys(value)

    def list_pets(self) -> str:
        """Press List, and return the outcome."""
        return self.press("List", "list-outcome")

    def add_pet(self, name: str, category_id: str) -> str:
        """Add a pet, and return the outcome."""
        self.fill("Name", name)
        self.fill("Category id", category_id)
        return self.press("Add", "add-outcome")

    def press(self, button: str, outcome: str) -> str:
        """Press a button, and return the outcome."""
        self.browser.find_element(By.XPATH, f"//button[.='{button}']").click()
        return self.outcome(outcome)

    def outcome(self, element_id: str) -> str:
        """Wait for an outcome, and return its kind and its sentence."""
        element = self.element(element_id)
        wait = WebDriverWait(self.browser, 10, 0.05)
        wait.until(lambda _: element.get_attribute("class") != "waiting")
        assert self.run(IN_SIGHT, element), f"out of sight: {element.text}"
        return f"{element.get_attribute('class')}: {element.text}"

    def run_curl_line(self) -> str:
        """Run the curl line in a shell with the key, and return the body."""
        line = self.text("curl").replace("<API_KEY>", self.key, 1)
        output = subprocess.check_output(
            ["bash", "-c", f"{line} -s"], text=True, timeout=10
        )
        return output.partition("\n\n")[2]


def try_errors(page: Page) -> None:
    no_key = "error: Enter the API key at the top of the page."
    assert page.list_pets() == page.add_pet("Rex", "1") == no_key
    assert not page.element("last-request").is_displayed()
    page.fill("API key", "other")
    wrong_key = "error: invalid_api_key: The API key is not valid."
    assert page.list_pets().startswith(wrong_key)
    assert page.add_pet("Rex", "1").startswith(wrong_key)
    assert page.text("status-line").startswith("401 "), page.text("status-line")
    page.fill("API key", page.key)
    for category_id in ("", "many", "9007199254740993"):
        outcome = page.add_pet("Rex", category_id)
        assert outcome.startswith("error: invalid_body: categoryId: Must be"), outcome
    assert page.text("list-outcome").startswith("invalid_api_key: ")


def try_pets(page: Page) -> None:
    assert page.list_pets() == "success: No pets."
    outcome = page.add_pet(MARKUP, "-7")
    assert outcome == f"success: Added {MARKUP} with id 1, at the end of the list.", (
        outcome
    )
    assert page.text("status-line").lower() == "201 created"
    pet = {"id": 1, "name": MARKUP, "categoryId": -7, "status": "available"}
    assert pet.items() <= json.loads(page.text("body")).items()
    assert "location: " in page.text("headers")
    # Add does not change the table.
    assert page.rows() == []
    page.add_pet(SHELL_CHARACTERS, "2")
    assert json.loads(page.run_curl_line())["name"] == SHELL_CHARACTERS
    page.fill("Limit", "2")
    assert page.list_pets() == "success: 2 pets, more follow."
    assert page.run_curl_line().strip() == page.text("body")
    assert page.rows() == [
        ["1", MARKUP, "-7", "available"],
        ["2", SHELL_CHARACTERS, "2", "available"],
    ]
    assert page.press("Next page", "list-outcome") == "success: 1 pet, no more follow."
    assert not page.element("next").is_displayed()
    page.fill("Status", "sold")
    assert page.list_pets() == "success: No pets."
    page.fill("Status", "any")
    assert page.list_pets() == "success: 2 pets, more follow."
    page.fill("Limit", "0")
    assert page.list_pets().startswith("error: invalid_query: limit: ")
    assert_nothing_listed(page)


def assert_nothing_listed(page: Page) -> None:
    assert page.rows() == []
    assert not page.element("table").is_displayed()
    assert not page.element("next").is_displayed()


def try_keyboard_and_phone(page: Page) -> None:
    page.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
    page.browser.get(page.url)
    assert page.run(UNLABELED_FIELDS) == []

    def press_keys(*keys: str) -> None:
        ActionChains(page.browser).send_keys(*keys).perform()

    press_keys(page.key, Keys.TAB, Keys.TAB, "1", Keys.TAB, Keys.ENTER)
    assert page.outcome("list-outcome") == "success: 1 pet, more follow."
    press_keys(Keys.TAB, Keys.SPACE)
    page.outcome("list-outcome")
    assert page.rows()[0][0] == "2"
    long_name = "x" * 300
    press_keys(Keys.TAB, long_name, Keys.TAB, "5", Keys.TAB, "sold", Keys.TAB)
    press_keys(Keys.ENTER)
    added = f"success: Added {long_name} with id 4, at the end of the list."
    assert page.outcome("add-outcome") == added
    assert page.browser.switch_to.active_element == page.element("name")
    for field, value in ("name", ""), ("category-id", ""), ("new-status", "available"):
        assert page.element(field).get_property("value") == value
    press_keys(*[Keys.TAB] * 4, Keys.ENTER)
    wait = WebDriverWait(page.browser, 10, 0.05)
    wait.until(lambda _: page.text("hint").startswith("Copied."))
    page.element("name").send_keys(Keys.CONTROL, "v")
    assert page.element("name").get_property("value") == page.text("curl")
    page.fill("Limit", "100")
    page.list_pets()
    assert page.rows()[-1] == ["4", long_name, "5", "sold"]
    width = page.run("return document.documentElement.scrollWidth")
    assert width == 380, f"the page is {width} pixels wide"


def try_privacy(page: Page) -> None:
    assert page.key not in page.run(STORED)
    assert page.key not in page.browser.find_element(By.TAG_NAME, "body").text
    hosts = {urlsplit(url).netloc for url in page.run(REQUESTED)}
    assert hosts <= {urlsplit(page.url).netloc, ""}, hosts
    assert page.run("return document.images.length") == 0
    with urlopen(page.element("document").get_property("href"), timeout=10) as answer:
        assert json.load(answer)["info"]["title"] in page.browser.title


def try_console_and_no_answer(page: Page) -> None:
    log = [entry["message"] for entry in page.browser.get_log("browser")]
    assert all("status of 40" in message for message in log), log
    page.browser.set_network_conditions(offline=True, latency=0, throughput=0)
    no_answer = "error: No answer (Failed to fetch). Is the service running?"
    assert page.list_pets() == page.add_pet("Rex", "1") == no_answer
    assert_nothing_listed(page)


def main(url: str, key: str) -> None:
    options = ChromeOptions()
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with TemporaryDirectory() as profile:
        for switch in (*SWITCHES, f"--user-data-dir={profile}"):
            options.add_argument(switch)
        with Chrome(options, Service("/usr/bin/chromedriver")) as browser:
            browser.get(url)
            page = Page(browser, url, key)
            try_errors(page)
            try_pets(page)
            try_privacy(page)
            try_keyboard_and_phone(page)
            try_privacy(page)
            try_console_and_no_answer(page)


if __name__ == "__main__":
    main(*sys.argv[1:])
