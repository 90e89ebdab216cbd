"""Tries the page in headless Chromium: page.py URL KEY, where no pet is stored yet."""

import json
import sys
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.wait import WebDriverWait

URL, KEY = sys.argv[1:]
LIST, ADD = "section:nth-of-type(1)", "section:nth-of-type(2)"
MARKUP = "<img src=x onerror='document.title = 1'><script>alert(1)</script>"
# The second number is past 2^53: JavaScript would make 9007199254740992 of it.
PETS = [("Rex", 1), (MARKUP, 9007199254740993), ("Zoë O'Neill", -7)]
ROWS = [[str(id), name, str(n), "available"] for id, (name, n) in enumerate(PETS, 1)]
PHONE = {"width": 380, "height": 900, "deviceScaleFactor": 1, "mobile": True}
SWITCHES = """--headless=new --no-sandbox --disable-gpu --disable-background-networking
    --disable-component-update --disable-sync --no-first-run --user-data-dir="""
TEXTS = "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)"
STORED = "return document.cookie.length + localStorage.length + sessionStorage.length"
REQUESTS = "return performance.getEntries().map((entry) => entry.name)"
SIDEWAYS = """return [...document.querySelectorAll("html, section")].filter(
    (element) => element.scrollWidth > element.clientWidth).length"""


def see(selector: str, *wanted: str) -> None:
    """Wait until there are as many elements as texts, each with its text in it."""

    def fits(browser: Chrome) -> bool:
        found = browser.execute_script(TEXTS, selector)
        pairs = zip(wanted, found, strict=False)
        return len(wanted) == len(found) and all(want in text for want, text in pairs)

    WebDriverWait(browser, 10, 0.05).until(fits, f"{selector} does not show {wanted}")


def send(box: str, field: str = "#key", text: str = KEY) -> None:
    browser.find_element("css selector", field).clear()
    browser.find_element("css selector", field).send_keys(text)
    browser.find_element("css selector", f"{box} form button").click()


options = ChromeOptions()
options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
with TemporaryDirectory() as profile:
    for switch in f"{SWITCHES}{profile}".split():
        options.add_argument(switch)
    with Chrome(options, Service("/usr/bin/chromedriver")) as browser:
        browser.get(URL)
        see("h2", "List animals", "Add an animal", "Get an animaldeprecated")
        see("label", "API key", "limit", "status", "after", "body", "petId")
        see("main :is(input, select, textarea):not(label *), #key:not(label + *)")
        send(LIST, text="")
        see("#which", "Enter a key first: one of those in")
        send(LIST, "#key:focus", f"not {KEY} é€")
        see(f"{LIST} [role=status]", "invalid_api_key")
        send(LIST)
        see(f"{LIST} [role=status]", "To add one: POST /pets")
        for (name, number), row in zip(PETS, ROWS, strict=True):
            send(ADD, "textarea", json.dumps({"name": name, "categoryId": number}))
            see(f"{LIST} .new td", *row)
        see(f"{LIST} details", '"categoryId":9007199254740993')
        send(ADD, "textarea", '{"name": "O\'Neill"}')
        see(f"{ADD} [role=status]", "invalid_bodycategoryId")
        see(f"{ADD} form + pre", r"""--data-raw '{"name": "O'\''Neill"}'""")
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
        assert browser.execute_script(SIDEWAYS) == 0, "it scrolls sideways"
        send(LIST, f"{LIST} input", "2")
        see(f"{LIST} td", *ROWS[0], *ROWS[1])
        browser.find_element("css selector", ".next").click()
        see(f"{LIST} td", *ROWS[2])
        see("img, section script")
        assert browser.execute_script(STORED) == 0, "something is stored"
        hosts = {urlsplit(name).netloc for name in browser.execute_script(REQUESTS)}
        assert hosts == {urlsplit(URL).netloc, ""}, hosts
        log = [entry["message"] for entry in browser.get_log("browser")]
        assert [text.split(" of ")[-1][:3] for text in log] == ["401", "400"], log
print(f"ran: the page at {URL} in Chromium")
