"""A headless Chromium without a network, which records every request that it makes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium.webdriver import Chrome
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
_SWITCHES = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND",
)


class Browser:
    """A browser that shows one page at a time."""

    def __init__(self, driver: Chrome) -> None:
        self._driver = driver

    def open(
        self, page: Path, anchor: str = "", width: int = 1200, scheme: str = "light", script=True
    ) -> None:
        command = self._driver.execute_cdp_cmd
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        command("Emulation.setDeviceMetricsOverride", metrics)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        command("Emulation.setEmulatedMedia", {"features": features})
        command("Emulation.setScriptExecutionDisabled", {"value": not script})
        self._driver.get("about:blank")
        self.requests()
        self._driver.get_log("browser")
        self._driver.get(page.as_uri() + anchor)

    def run(self, script: str, *arguments: Any) -> Any:
        return self._driver.execute_script(script, *arguments)

    def press(self, key: str) -> None:
        self._driver.switch_to.active_element.send_keys(key)

    def console(self) -> list[str]:
        return [entry["message"] for entry in self._driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Return the addresses requested since the last call."""
        events = [json.loads(e["message"])["message"] for e in self._driver.get_log("performance")]
        asked = (e["params"] for e in events if e["method"] == "Network.requestWillBeSent")
        return [params["request"]["url"] for params in asked]


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    options = Options()
    options.binary_location = CHROMIUM or ""
    for switch in (*_SWITCHES, f"--user-data-dir={folder}"):
        options.add_argument(switch)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = Chrome(options=options, service=Service(DRIVER))
    try:
        driver.execute_cdp_cmd("Network.enable", {})
        yield Browser(driver)
    finally:
        driver.quit()
