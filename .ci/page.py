"""Try the page in headless Chromium: page.py URL KEY. The store must be empty."""

import json
import subprocess
import sys
from decimal import Decimal
from shutil import which
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from selenium.webdriver import ActionChains, Chrome, ChromeOptions, Keys
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

# no-sandbox: for root. The last four: Chromium itself sends nothing to other hosts.
SWITCHES = (
    *("headless=new", "no-sandbox", "disable-background-networking"),
    *("disable-component-update", "disable-sync", "no-first-run"),
)
DESKTOP = {"width": 1400, "height": 900, "deviceScaleFactor": 1, "mobile": False}
PHONE = {"width": 380, "height": 800, "deviceScaleFactor": 1, "mobile": True}

MAX_INT64 = 2**63 - 1

MARKUP = "<img src=x onerror='document.title = 1'><script>alert(1)</script>"
SHELL_CHARACTERS = """It's "$HOME" `id` \\ !! <API_KEY> é"""
IN_SIGHT = """
    const box = arguments[0].getBoundingClientRect();
    return box.top >= 0 && box.bottom <= innerHeight;
"""
TOO_WIDE = """
    return [...document.querySelectorAll("html, section")]
        .filter((box) => box.scrollWidth > Math.min(box.clientWidth, 380))
        .map((box) => box.textContent);
"""
LINES = """
    const style = getComputedStyle(arguments[0]);
    const padding = parseFloat(style.paddingTop) + parseFloat(style.paddingBottom);
    return (arguments[0].clientHeight - padding) / parseFloat(style.lineHeight);
"""
COUNT_REQUESTS = """
    window.requests = 0;
    const send = fetch;
    fetch = (...request) => {
        requests += 1;
        return send(...request);
    };
"""
CLICK_TWICE = "arguments[0].click(); arguments[0].click()"
# The second click of a double click, which may come after the answer.
SECOND_CLICK = """
    const init = { detail: 2, bubbles: true, cancelable: true };
    arguments[0].dispatchEvent(new MouseEvent("click", init));
"""
ANSWER_WITH = "fetch = async () => new Response(...arguments)"
# In browsers from before 2023 to 2025, the reviver gets no context.
NO_SOURCE_TEXT = """
    const parse = JSON.parse;
    JSON.parse = (text, reviver) =>
        parse(text, reviver && ((name, value) => reviver(name, value)));
"""
ROWS = """
    const rows = [...document.querySelectorAll("tbody tr")];
    return rows.map((row) => [...row.cells].map((cell) => cell.innerText));
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

    def rows(self) -> Any:
        """Return the text of each cell of the table."""
        return self.run(ROWS)

    def fill(self, label: str, value: str) -> None:
        """Find a field by its label, and type the value or select it."""
        path = f"//*[@id = //label[. = '{label}']/@for]"
        field = self.browser.find_element(By.XPATH, path)
        if field.tag_name == "input":
            field.clear()
        field.send_keys(value)

    def open(self, screen: dict[str, Any]) -> None:
        """Open the page again, on a screen of this size."""
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        self.browser.get(self.url)
        self.run(COUNT_REQUESTS)

    def button(self, name: str) -> WebElement:
        return self.browser.find_element(By.XPATH, f"//button[.='{name}']")

    def focus(self) -> WebElement:
        return self.browser.switch_to.active_element

    def in_sight(self, *element_ids: str) -> bool:
        return all(self.run(IN_SIGHT, self.element(name)) for name in element_ids)

    def add_pet(self, name: str, category_id: str) -> str:
        """Add a pet, and return the outcome."""
        self.fill("Name", name)
        self.fill("Category id", category_id)
        return self.press("Add")

    def press(self, button: str) -> str:
        """Press a button, and return the outcome."""
        self.button(button).click()
        return self.outcome(button)

    def outcome(self, button: str) -> str:
        """Wait for the outcome of a button, and return its kind and its sentence."""
        element = self.element("add-outcome" if button == "Add" else "list-outcome")
        wait = WebDriverWait(self.browser, 10, 0.05)
        wait.until(lambda _: element.get_attribute("class") != "waiting")
        assert self.run(IN_SIGHT, element), f"out of sight: {element.text}"
        return f"{element.get_attribute('class')}: {element.text}"

    def run_curl_line(self) -> str:
        """Run the curl line in a shell with the key, and return the body."""
        line = self.text("curl").replace("<API_KEY>", self.key, 1)
        command = ["bash", "-c", f"{line} -s"]
        output = subprocess.check_output(command, text=True, timeout=10)
        return output.partition("\n\n")[2]


def try_first_sight(page: Page) -> None:
    page.open(PHONE)
    assert page.in_sight("key", "list", "list-outcome")
    page.open(DESKTOP)
    operations = page.browser.find_elements(By.TAG_NAME, "section")[-1]
    for path in "GET /pets", "POST /pets", "GET /pets/{petId}":
        assert path in operations.text
    assert f"Operations at {page.url.rstrip('/')}/v1" in operations.text
    assert page.run(IN_SIGHT, operations)
    document = page.element("document")
    with urlopen(str(document.get_property("href")), timeout=10) as answer:
        assert json.load(answer)["info"]["title"] in page.browser.title
    assert document.get_property("target") == "_blank"


def try_errors(page: Page) -> None:
    no_key = "error: Enter the API key at the top of the page."
    assert page.press("List") == page.add_pet("Rex", "1") == no_key
    assert page.focus() == page.element("key")
    page.fill("API key", "demo–key")
    not_a_key = 'error: The API key contains "–", which no key has.'
    assert page.press("List") == page.add_pet("Rex", "1") == not_a_key
    assert page.run("return requests") == 0
    assert not page.element("last-request").is_displayed()
    page.fill("API key", "other")
    wrong_key = "error: invalid_api_key: The API key is not valid."
    assert page.press("List").startswith(wrong_key)
    assert page.add_pet("Rex", "1").startswith(wrong_key)
    assert page.text("status-line").startswith("401 "), page.text("status-line")
    page.fill("API key", page.key)
    for category_id in ("many", " ", str(MAX_INT64 + 1), "1.5"):
        outcome = page.add_pet("Rex", category_id)
        assert outcome.startswith("error: invalid_body: categoryId: Must be"), outcome
    assert '"categoryId":1.5,' in page.text("curl")
    assert page.text("list-outcome").startswith("invalid_api_key: ")
    requests = page.run("return requests")
    page.add_pet("", "1")
    page.add_pet("Rex", "")
    assert page.run("return requests") == requests


def try_pets(page: Page) -> None:
    assert page.press("List") == "success: No pets."
    outcome = page.add_pet(MARKUP, "-7")
    assert outcome == f"success: Added {MARKUP[:30]}… with id 1.", outcome
    assert page.text("status-line").lower() == "201 created"
    pet = {"id": 1, "name": MARKUP, "categoryId": -7, "status": "available"}
    assert pet.items() <= json.loads(page.text("body")).items()
    path = urlsplit(page.url).path.rstrip("/")
    assert page.text("headers") == f"location: {path}/v1/pets/1"
    # The list has been fetched again, and the last request is the POST.
    assert page.text("list-outcome") == "1 pet, no more follow."
    page.add_pet(SHELL_CHARACTERS, "2")
    assert json.loads(page.run_curl_line())["name"] == SHELL_CHARACTERS
    assert page.rows() == [
        ["1", MARKUP, "-7", "available"],
        ["2", SHELL_CHARACTERS, "2", "available"],
    ]
    page.fill("Limit", "3")
    assert page.press("List") == "success: 3 pets, no more follow."
    assert not page.text("add-outcome")
    assert page.run_curl_line().strip() == page.text("body")
    assert page.add_pet("Tom", "3") == "success: Added Tom with id 4."
    assert page.text("list-outcome") == "3 pets, more follow."
    page.fill("Limit", "0")
    assert page.press("List").startswith("error: invalid_query: limit: ")
    assert_nothing_listed(page)
    assert page.add_pet("Max", "5") == "success: Added Max with id 5."
    assert_nothing_listed(page)
    page.fill("Limit", "")
    page.fill("Status", "sold")
    assert page.press("List") == "success: No pets with status sold."
    assert_nothing_listed(page)
    assert page.add_pet("Kitty", "4") == "success: Added Kitty with id 6."
    page.fill("Status", "any")
    assert page.press("List") == "success: 6 pets, no more follow."
    assert "limit" not in page.text("curl")


def assert_nothing_listed(page: Page) -> None:
    assert page.rows() == []
    assert not page.element("table").is_displayed()
    assert not page.element("next").is_displayed()


def try_integers(page: Page, number: type[int | float]) -> None:
    """Compare what was typed with what is stored, and as a number with the table."""
    page.fill("Limit", "100")
    page.press("List")
    for typed in ("9007199254740993", str(MAX_INT64), " 12 ", "-007", "0", "-1.2E+3"):
        page.add_pet("Rex", typed)
        assert f'"categoryId":{int(Decimal(typed))},' in page.text("body")
        assert number(page.rows()[-1][2]) == number(Decimal(typed)), page.rows()[-1]


def try_pages(page: Page) -> None:
    page.fill("Limit", "2")
    assert page.press("List") == "success: 2 pets, more follow."
    first = page.rows()
    for button in "Next page", "Next page", "Previous page":
        page.add_pet("Rex", "many")
        page.press(button)
        assert not page.text("add-outcome")
        assert page.focus() == page.button(button)
    page.fill("API key", "other")
    for button in "Next page", "Previous page":
        assert page.press(button).startswith("error: invalid_api_key")
        assert [row[0] for row in page.rows()] == ["3", "4"]
    page.fill("API key", page.key)
    page.press("Previous page")
    assert page.press("Previous page") == "success: 2 pets, more follow."
    assert page.rows() == first
    assert page.focus() == page.button("Previous page")
    while "no more follow" not in page.text("list-outcome"):
        page.button("Next page").send_keys(Keys.ENTER)
        page.outcome("Next page")
    assert page.press("Next page").endswith(" no more follow.")
    assert page.focus() == page.button("Next page")


def try_long_values(page: Page) -> None:
    """Try an answer of our own: the service itself begins with short ids."""
    pet = {"id": MAX_INT64, "name": "x" * 900, "categoryId": ~MAX_INT64}
    init = {"headers": {"Content-Type": "application/json"}}
    page.run(ANSWER_WITH, json.dumps([pet | {"status": "available"}]), init)
    page.press("List")
    cells = page.browser.find_elements(By.CSS_SELECTOR, "td > div")
    assert [page.run(LINES, cell) for cell in cells] == [1, 5, 1, 1]


def try_without_source_text(page: Page) -> None:
    page.open(DESKTOP)
    page.run(NO_SOURCE_TEXT)
    page.fill("API key", page.key)
    try_integers(page, float)
    assert page.rows()[-6][2] == "9007199254740992"
    try_pages(page)


def try_double_clicks(page: Page) -> None:
    page.open(DESKTOP)
    page.fill("API key", page.key)
    page.fill("Limit", "2")
    page.press("List")
    # After a pet is added, the list is fetched again.
    for button, count in ("Next page", 1), ("Add", 2):
        page.fill("Name", "Rex")
        page.fill("Category id", "1")
        requests = page.run("return requests")
        page.run(SECOND_CLICK, page.button(button))
        assert page.run("return requests") == requests
        page.run(CLICK_TWICE, page.button(button))
        page.outcome(button)
        assert page.run("return requests") == requests + count


def try_100_pets(page: Page) -> None:
    body = b'{"name": "Rex", "categoryId": 9007199254740993}'
    request = Request(f"{page.url}/v1/pets", body)
    request.add_header("Authorization", f"Bearer {page.key}")
    request.add_header("Content-Type", "application/json")
    for _ in range(100):
        urlopen(request, timeout=10).close()
    page.fill("Limit", "100")
    assert page.press("List") == "success: 100 pets, more follow."
    assert page.element("body").rect["height"] <= 20 * 16
    assert page.in_sight("status-line", "body", "headers")
    page.press("Next page")


def try_names(page: Page) -> None:
    """Try what a screen reader reads: each section and field, but no mark."""
    named = "section, table, input, select, button, [tabindex]"
    for element in page.browser.find_elements(By.CSS_SELECTOR, named):
        assert element.accessible_name, element.get_attribute("outerHTML")
    nodes = page.browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    names = " ".join(str(node["name"].get("value")) for node in nodes if "name" in node)
    assert "pets" in names
    assert not set("✓✗●◐○") & set(names)


def try_keyboard_and_phone(page: Page) -> None:
    page.open(PHONE)

    def press_keys(*keys: str) -> None:
        ActionChains(page.browser).send_keys(*keys).perform()

    press_keys(page.key, Keys.TAB, Keys.TAB, "1", Keys.TAB, Keys.ENTER)
    assert page.outcome("List") == "success: 1 pet, more follow."
    press_keys(Keys.TAB, Keys.TAB, Keys.SPACE)
    page.outcome("Next page")
    assert page.rows()[0][0] == "2"
    long_name = "x" * 900
    press_keys(Keys.TAB, long_name, Keys.TAB, "5", Keys.TAB, "sold", Keys.TAB)
    press_keys(Keys.ENTER)
    assert page.outcome("Add").startswith(f"success: Added {'x' * 30}… with")
    assert page.run(LINES, page.element("add-outcome")) <= 5
    assert page.element("curl").rect["height"] <= 20 * 16
    assert page.focus() == page.element("name")
    for field, value in ("name", ""), ("category-id", ""), ("new-status", "sold"):
        assert page.element(field).get_property("value") == value
    press_keys(*[Keys.TAB] * 4, Keys.ENTER)
    assert page.text("hint").startswith("Copied.")
    page.element("name").send_keys(Keys.CONTROL, "v")
    assert page.element("name").get_property("value") == page.text("curl")
    page.fill("Limit", "100")
    page.fill("Status", "sold")
    page.press("List")
    assert page.rows()[-1][1:] == [long_name, "5", "sold"]
    assert page.run(LINES, page.browser.find_element(By.CLASS_NAME, "name")) == 5
    assert page.run(TOO_WIDE) == []


def try_privacy(page: Page) -> None:
    assert page.key not in page.run(STORED)
    assert page.key not in page.browser.find_element(By.TAG_NAME, "body").text
    hosts = {urlsplit(url).netloc for url in page.run(REQUESTED)}
    assert hosts <= {urlsplit(page.url).netloc, ""}, hosts


def try_console_and_no_answer(page: Page) -> None:
    log = [entry["message"] for entry in page.browser.get_log("browser")]
    assert all("status of 40" in message for message in log), log
    page.browser.set_network_conditions(offline=True, latency=0, throughput=0)
    no_answer = "error: No answer (Failed to fetch). Is the service running?"
    assert page.press("List") == page.add_pet("Rex", "1") == no_answer
    assert_nothing_listed(page)
    page.browser.delete_network_conditions()
    headers = {"Content-Type": "text/html"}
    init = {"status": 502, "statusText": "Bad Gateway", "headers": headers}
    page.run(ANSWER_WITH, "<h1>Bad Gateway</h1>", init)
    proxy = "error: 502 Bad Gateway: this is not an answer of the service."
    assert page.press("List") == page.add_pet("Rex", "1") == proxy


def main(url: str, key: str) -> None:
    options = ChromeOptions()
    for switch in SWITCHES:
        options.add_argument(f"--{switch}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with Chrome(options, Service(which("chromedriver"))) as browser:
        page = Page(browser, url, key)
        try_first_sight(page)
        try_errors(page)
        try_pets(page)
        try_integers(page, int)
        try_pages(page)
        try_long_values(page)
        try_without_source_text(page)
        try_names(page)
        try_privacy(page)
        try_double_clicks(page)
        try_100_pets(page)
        try_keyboard_and_phone(page)
        try_privacy(page)
        try_console_and_no_answer(page)


if __name__ == "__main__":
    main(*sys.argv[1:])
