"""Make docs/page.png, the picture of the page in the README."""

from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.sync_api import sync_playwright

from tests.helpers import KEY
from tests.service import ROOT, serving
from tests.system.test_page import (
    CHROMIUM,
    added,
    expect_outcome,
    press_add,
    press_list,
    region,
)

PETS = (
    ("Rex", "available"),
    ("Kitty", "sold"),
    ("Zoë", "pending"),
    ("Bella", "available"),
    ("Charlie", "sold"),
    ("Tom", "available"),
)

with (
    TemporaryDirectory() as folder,
    serving(Path(folder, "pets.db"), ["flask", "run"]) as service,
    sync_playwright() as playwright,
    playwright.chromium.launch(**CHROMIUM) as browser,
):
    page = browser.new_page(
        viewport={"width": 1160, "height": 650}, color_scheme="light"
    )
    page.goto(f"http://{service.address()}/")
    page.get_by_label("API key").fill(KEY)
    press_list(page)
    for pet_id, (name, status) in enumerate(PETS, 1):
        region(page, "Add a pet").get_by_label("Status").select_option(status)
        press_add(page, name, f"{(pet_id + 1) // 2}")
        expect_outcome(page, "Add a pet", added(name, pet_id))
    expect_outcome(page, "Pets", "6 pets of any status, no more follow.")
    page.mouse.move(0, 0)
    page.screenshot(path=ROOT / "docs" / "page.png")
